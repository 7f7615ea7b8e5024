"""What can take part in a learner's training: plugins that a task names, Hansa's and those of installed packages.

    LocalPlugin   adds to the loss, sees or changes gradients, says when it is enough, finds metrics (any number)
    BatchSource   says which examples make up which batch (at most one)

Both are frozen values whose fields are the arguments that the task brings. What a plugin remembers during a
task is what `begin` returned; its type is the plugin's type parameter, as in `class Clip(LocalPlugin[list[bool]])`.
What it remembers from task to task is in `run.memory`. This module does not import torch: a package can have
the controller's and the learner's side of a method in one file.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, cast
from zlib import crc32

import numpy as np
from pydantic import JsonValue
from typing_extensions import TypeVar

from hansa.common.app import App
from hansa.common.plugins.registry import Plugin, contract
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Task, Train

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hansa.common.torch.data import Tensors


H = TypeVar("H", default=None)  # what a plugin works with during a task


@dataclass
class Course:
    """How far training is."""

    epoch: int = 0  # the one under way, from 1 on
    steps: int = 0  # of the optimizer, in this task so far


@dataclass(kw_only=True)
class LocalRun(Course):
    """One training task as plugins see it. They may change gradients (in `pull`) and their memory, nothing else."""

    app: App
    task: Task
    work: Train
    seed: int
    model: "nn.Module"  # it holds what the task starts from when `begin` is called
    anchor: Mapping[str, np.ndarray]  # the model that the task starts from
    examples: "Tensors"  # the training part of the site's data
    validation: "Tensors"
    memory: dict[str, JsonValue]  # of the job at this site, through restarts; use your plugin's name as key
    cancelled: Callable[[], bool]  # whether the task was withdrawn: ask before anything long
    measure: Callable[[], Evaluation]  # the model as it is, on the validation part
    pulse: Callable[
        [], int | None
    ]  # optimizer steps committed to the job, as far as is known; none: out of reach

    def rng(self, name: str) -> "torch.Generator":
        """Return chance of a plugin's own: the same whenever a task asks for it, whatever the order of examples."""
        import torch

        words = [self.seed, crc32(name.encode())]
        return torch.Generator().manual_seed(
            int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
        )


@contract("learner")
class LocalPlugin(Plugin, Generic[H]):
    """Takes part in the training of a task. Override what is needed; what is not overridden costs nothing.

    The order in a batch is `penalty`, `watch`, `pull`; plugins are called in the order in which the task
    names them.
    """

    alone: ClassVar[str] = "the app trains by a function of its own, in which no plugin can take part"

    def begin(self, run: LocalRun) -> H:
        """Return what the plugin works with in this task; the other methods are handed it as `held`."""
        return cast(H, None)

    def penalty(self, held: H, run: LocalRun) -> "torch.Tensor | None":
        """Return what is added to the loss of a batch. The loss that the site reports is the app's."""

    def watch(self, held: H, run: LocalRun) -> None:
        """See the gradients of a batch before anybody has changed them."""

    def pull(self, held: H, run: LocalRun) -> None:
        """Change the gradients of a batch."""

    def after_epoch(self, held: H, run: LocalRun) -> bool:
        """Say whether training is to end now; nobody is asked in a window of batches, inside which no epoch ends."""
        return False

    def finish(self, held: H, run: LocalRun) -> Mapping[str, float]:
        """Return what was found, by name: it goes to the controller as the update's `facts.metrics`."""
        return {}


@contract("batches")
class BatchSource(Plugin):
    """Says which examples a task trains on, batch by batch."""

    alone: ClassVar[str] = "the app trains by a function of its own, which makes batches of its own"

    @abstractmethod
    def epoch(self, run: LocalRun, generator: "torch.Generator") -> Iterable["torch.Tensor | np.ndarray"]:
        """Yield the batches of an epoch as row numbers of `run.examples`. All chance comes from the generator."""
