"""This process does all tasks itself, when their outcomes are asked for."""

from collections.abc import Sequence
from itertools import islice

from hansa.common.values.ids import TaskId
from hansa.simulation.batched.agreement import WIDTHS
from hansa.simulation.crew.base import Assignment, Crew, Outcome
from hansa.simulation.sites.desk import Desk


class Inline(Crew):
    """No workers: a task is done when its outcome is asked for, and not at all if nobody asks."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: dict[TaskId, Assignment] = {}
        self._done: dict[TaskId, Outcome] = {}  # ahead, together with a task that was asked for

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Keep tasks until somebody asks."""
        for assignment in assignments:
            self._waiting[assignment.task.id] = assignment
            self._done.pop(assignment.task.id, None)

    def outcome(self, task: TaskId) -> Outcome:
        """Do a task, and with it others that are done faster together."""
        if task not in self._done:
            block = [self._waiting.pop(task)]
            if self._desk.takes_together(block[0]):
                fitting = filter(self._desk.takes_together, self._waiting.values())
                block += islice(fitting, WIDTHS[0] - 1)
            for assignment, outcome in zip(block, self._desk.do_all(block), strict=True):
                self._waiting.pop(assignment.task.id, None)
                self._done[assignment.task.id] = outcome
        return self._done.pop(task)

    def withdraw(self, task: TaskId) -> None:
        """Forget a task."""
        self._waiting.pop(task, None)
        self._done.pop(task, None)
        self._desk.forget(task)

    def close(self) -> None:
        """Forget all tasks."""
        self._waiting.clear()
        self._done.clear()
        self._desk.close()
