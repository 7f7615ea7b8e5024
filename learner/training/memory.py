"""What a learner remembers of a job from task to task, for as long as it runs.

A task that is done again, because its update did not arrive, starts from the same memory as the first time
and gives the same update, bit for bit. What plugins remember is in `hansa.learner.memory`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from hansa.common.torch.model import as_array, as_tensor
from hansa.common.torch.statistics import Statistics
from hansa.common.values.ids import TaskId
from hansa.learner.training.optimizers import States

T = TypeVar("T")
U = TypeVar("U")
Known = tuple[States, Statistics]  # momentum and the like, and batch-norm statistics of the site's own
PlainKnown = tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]  # the same, with arrays for tensors


@dataclass
class Memory(Generic[T]):
    """What was known before and after the last task, for as long as the learner runs."""

    before: T
    after: T
    task: TaskId | None = None  # the last one

    def recall(self, task: TaskId) -> T:
        """Return what a task starts from."""
        if task != self.task:
            self.before = self.after
        self.task = task
        return self.before

    def converted(self, convert: Callable[[T], U]) -> "Memory[U]":
        """Return the same memory in another form."""
        before = convert(self.before)
        return Memory(before, before if self.after is self.before else convert(self.after), self.task)


PlainMemory = Memory[PlainKnown]  # which can be pickled and sent to another learner


def plain(known: Known) -> PlainKnown:
    """Return what is known without tensors; arrays share their memory where they can."""
    states, statistics = known
    return (
        {name: {key: _plain(value) for key, value in state.items()} for name, state in states.items()},
        {name: _plain(tensor) for name, tensor in statistics.items()},
    )


def from_plain(known: PlainKnown) -> Known:
    """Return what is known with tensors, in the CPU's memory."""
    states, statistics = known
    return (
        {name: {key: _from_plain(value) for key, value in state.items()} for name, state in states.items()},
        {name: as_tensor(array) for name, array in statistics.items()},
    )


def _plain(value: Any) -> Any:
    return as_array(value.cpu()) if isinstance(value, torch.Tensor) else value


def _from_plain(value: Any) -> Any:
    return as_tensor(value) if isinstance(value, np.ndarray) else value
