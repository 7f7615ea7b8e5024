"""What a learner remembers of a job from task to task. It lives as long as the learner, not longer."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from hansa.common.ids import TaskId

T = TypeVar("T")


@dataclass
class Memory(Generic[T]):
    """What was known before and after the last task.

    A task that is done again, because its update did not arrive, starts from what it started from the first time and
    gives the same update, bit for bit.
    """

    before: T
    after: T
    task: TaskId | None = None  # the last one

    def recall(self, task: TaskId) -> T:
        """Return what a task starts from."""
        if task != self.task:
            self.before = self.after
        self.task = task
        return self.before
