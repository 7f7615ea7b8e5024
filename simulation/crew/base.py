"""The contract of a crew: tasks go in, and each has one outcome, whoever does it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hansa.common.models.model import Arrays, Manifest
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.results import Evaluation, Failure, Profile, UpdateFacts
from hansa.common.values.tasks import Task
from hansa.simulation.storage.memory import SiteMemory
from hansa.simulation.storage.slab import Slot


@dataclass(frozen=True)
class Assignment:
    """A task, and what it needs besides its models: everything that its site remembers.

    Training that listens to what other sites commit stops at the end of each epoch, until the time has come
    to know that. It is then assigned again, with one more pulse.
    """

    task: Task
    site: int
    memory: SiteMemory | None = None  # None: nothing
    # The steps committed to the job when training began and after each epoch; None: it does not listen
    pulses: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Update:
    """A model that a site made: its payload, or the slot of the slab that holds it."""

    manifest: Manifest
    peaks: tuple[float, ...]  # the largest magnitude of each tensor
    payload: np.ndarray | Slot
    facts: UpdateFacts

    @property
    def nbytes(self) -> int:
        """The bytes of the payload."""
        return self.payload.size


@dataclass(frozen=True)
class Paused:
    """Training has come to the end of an epoch and goes on when it is assigned with the next pulse."""


Result = Update | Evaluation | Profile | float | Failure | Paused


@dataclass(frozen=True)
class Outcome:
    """What came of a task."""

    result: Result
    memory: SiteMemory | None = None  # what the site remembers after training
    steps: int = 0  # of the optimizer so far, with those for the site's own tensors
    examples: int = 0  # that the site trains on; 0 if the data could not be read
    remarks: tuple[str, ...] = ()  # on how tasks are done, not on this one


@dataclass(frozen=True)
class Model:
    """A model that a task reads."""

    manifest: Manifest
    arrays: Arrays  # read-only


class Models(ABC):
    """Where a crew finds the models that tasks read."""

    @abstractmethod
    def read(self, key: ModelKey) -> Model:
        """Return a model."""


class Crew(ABC):
    """Does tasks. All crews give the same outcomes, bit for bit."""

    @abstractmethod
    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Take on tasks; they may be begun at once, or only when somebody asks for an outcome."""

    @abstractmethod
    def outcome(self, task: TaskId) -> Outcome:
        """Wait for the outcome of a task that was submitted; each outcome can be had once."""

    @abstractmethod
    def withdraw(self, task: TaskId) -> None:
        """Forget a task, whether it was submitted or is paused: nobody will ask for its outcome."""

    @abstractmethod
    def close(self) -> None:
        """End everything that was started."""
