"""This process does all tasks itself, when their outcomes are asked for."""

from collections.abc import Sequence

from hansa.common.values.ids import TaskId
from hansa.simulation.crew.base import Assignment, Crew, Outcome
from hansa.simulation.desk import Desk


class Inline(Crew):
    """No workers: a task is done when its outcome is asked for, and not at all if nobody asks."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: dict[TaskId, Assignment] = {}

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Keep tasks until somebody asks."""
        for assignment in assignments:
            self._waiting[assignment.task.id] = assignment

    def outcome(self, task: TaskId) -> Outcome:
        """Do a task."""
        return self._desk.do(self._waiting.pop(task))

    def withdraw(self, task: TaskId) -> None:
        """Forget a task."""
        self._waiting.pop(task, None)
        self._desk.forget(task)

    def close(self) -> None:
        """Forget all tasks."""
        self._waiting.clear()
        self._desk.close()
