"""What a learner remembers of a job from task to task, for as long as it runs.

A task that is done again, because its update did not arrive, starts from the same memory as the first time
and gives the same update, bit for bit. What plugins remember is in `hansa.learner.memory`.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from hansa.common.values.ids import TaskId

T = TypeVar("T")


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
