"""The contract of plugins that take part in a learner's training: Hansa's and those of installed packages.

    LocalPlugin   adds to the loss, sees or changes gradients, ends training, reports metrics, changes what is
                  returned (any number per task)
    BatchSource   decides which examples make up which batch (at most one per task)

Both are frozen values whose fields are the arguments in the task. What a plugin remembers during a task is
what its `begin` returned; the type of that is the plugin's type parameter, as in `class
Clip(LocalPlugin[list[bool]])`. What it remembers from task to task is in `run.memory` and `run.arrays`. This
module does not import torch, so a package can have the controller's and the learner's side of a method in one
file.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, cast
from zlib import crc32

import numpy as np
from pydantic import JsonValue
from typing_extensions import TypeVar

from hansa.common.app import App
from hansa.common.models.model import Role
from hansa.common.plugins.registry import Plugin, contract
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Task, Train
from hansa.learner.memory.states import Recollection

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hansa.common.torch.data import Data


H = TypeVar("H", default=None)  # what a plugin works with during a task


@dataclass
class Course:
    """How far training has come."""

    epoch: int = 0  # the one under way, from 1 on
    steps: int = 0  # of the optimizer, in this task so far


@dataclass(kw_only=True)
class LocalRun(Course):
    """A training task as plugins see it. They may change only gradients (in `pull`) and their memory.

    If the app trains by a function of its own, `model`, `examples` and `validation` are None.
    """

    app: App
    task: Task
    work: Train
    seed: int
    model: "nn.Module"  # when `begin` is called, it holds the model that the task starts from
    anchor: Mapping[str, np.ndarray]  # the model that the task starts from
    # Tensors beside the model that the rule sends down: by name, then by parameter; zeros at first.
    auxiliary: Mapping[str, Mapping[str, np.ndarray]]
    examples: "Data"  # the training part of the site's data
    validation: "Data"
    cancelled: Callable[[], bool]  # whether the task was withdrawn: ask before anything long
    measure: Callable[[], Evaluation]  # evaluates the model as it is, on the validation part
    # Returns the optimizer steps committed to the job, as far as known; None: the controller is out of reach.
    pulse: Callable[[], int | None]
    # Returns a plugin's own generator of random numbers that nobody outside the site can recompute, such as
    # noise. A task that is done again gets the same numbers; within a task, every call goes on with new ones.
    secret: Callable[[str], np.random.Generator]
    recollection: Recollection = field(default_factory=Recollection)
    own: Recollection = field(default_factory=Recollection)  # its arrays are the site's own model

    @property
    def memory(self) -> dict[str, JsonValue]:
        """What plugins remember of the job at this site, through restarts; use your plugin's name as key."""
        return self.recollection.state.memory

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The same for arrays, of any size; begin their names with your plugin's name."""
        return self.recollection.state.arrays

    @property
    def own_model(self) -> dict[str, np.ndarray]:
        """A model of the site's own beside the community's, with the same tensors; empty at first.

        It is kept as arrays are. The site's evaluator can evaluate it, and `hansa learner model` writes it.
        """
        return self.own.state.arrays

    @property
    def lost(self) -> bool:
        """Whether the site no longer has what it remembered when its last update was accepted.

        Then memory and arrays are empty. It is also true if no plugin of the job asked for them so far.
        """
        return self.recollection.state.lost

    def rng(self, name: str) -> "torch.Generator":
        """Return a plugin's own random generator, which depends on the task and the name alone.

        It is public: who knows the job can recompute its numbers. Noise must come from `secret`.
        """
        import torch

        words = [self.seed, crc32(name.encode())]
        return torch.Generator().manual_seed(
            int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
        )


@dataclass
class Returned:
    """What a task returns, for plugins to change."""

    tensors: dict[str, np.ndarray]  # the update; names, shapes and data types must stay
    roles: Mapping[str, Role] = field(default_factory=dict)  # whether a tensor is a parameter, by name
    auxiliary: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # by name, then by tensor
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProbeRun:
    """A probe as its plugin sees it: a model to look at, which stays as it is."""

    app: App
    task: Task
    batch_size: int
    seed: int
    model: "nn.Module"  # in training mode
    examples: "Data"  # the training part of the site's data
    cancelled: Callable[[], bool]  # whether the probe was withdrawn: ask before anything long


@contract("learner")
class LocalPlugin(Plugin, Generic[H]):
    """Takes part in the training of a task. Override the methods you need; the others cost nothing.

    The order in a batch is `penalty`, `watch`, `pull`; if a step accumulates several batches, the last two
    see the gradients of all of them, once. Plugins are called in the order in which the task names them. When
    training is over, `finish` of all of them is called, and then `amend`.
    """

    # Why the plugin cannot be used if the app trains by a function of its own. A plugin that overrides only
    # `begin`, `finish` and `amend` may say "".
    alone: ClassVar[str] = "the app trains by a function of its own, in which no plugin can take part"
    auxiliary: ClassVar[tuple[str, ...]] = ()  # the auxiliary tensors that it works with, by name

    def begin(self, run: LocalRun) -> H:
        """Return what the plugin works with in this task; the other methods get it as `held`."""
        return cast(H, None)

    def penalty(self, held: H, run: LocalRun) -> "torch.Tensor | None":
        """Return a term to add to the loss of a batch. The loss that the site reports does not include it."""

    def watch(self, held: H, run: LocalRun) -> None:
        """See the gradients of a batch before any plugin has changed them."""

    def pull(self, held: H, run: LocalRun) -> None:
        """Change the gradients of a batch."""

    def after_epoch(self, held: H, run: LocalRun) -> bool:
        """Return whether training ends now. It is not called in a window of batches, which has no epochs."""
        return False

    def finish(self, held: H, run: LocalRun) -> Mapping[str, float]:
        """Return metrics by name; the controller gets them as the update's `facts.metrics`."""
        return {}

    def amend(self, held: H, run: LocalRun, update: Returned) -> None:
        """Change what the task returns, such as to clip it or to add noise; the network stays as it is."""

    def probe(self, run: ProbeRun) -> float:
        """Return what a sampler wants to know about a model, without training; NaN if there is nothing."""
        raise NotImplementedError(f"{self.kind} only takes part in training")


@contract("batches")
class BatchSource(Plugin):
    """Decides which examples a task trains on, batch by batch."""

    alone: ClassVar[str] = "the app trains by a function of its own, which makes batches of its own"

    @abstractmethod
    def epoch(self, run: LocalRun, generator: "torch.Generator") -> Iterable["torch.Tensor | np.ndarray"]:
        """Yield the batches of an epoch as row numbers of `run.examples`; use no other randomness.

        Batches may be asked for ahead of the steps that use them, so they must not depend on those.
        """
