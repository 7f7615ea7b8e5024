"""What a learner remembers of a job from task to task: in memory, and plugins' notes across restarts.

A task that is done again, because its update did not arrive, starts from the same memory as the first time
and gives the same update, bit for bit.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.errors import Refused, TooLarge
from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Task
from hansa.learner.training.files import JobFiles

T = TypeVar("T")
FOLDER = "notes"  # in the state directory
LARGEST = 1 << 20  # bytes of a job's notes


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


class Note(Value):
    """What the plugins of a job's tasks knew before and after the last one."""

    task: TaskId
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]


class Notes:
    """The notes of a learner's jobs, in its state directory."""

    def __init__(self, state: Path) -> None:
        self._files = JobFiles(state / FOLDER, Note, "what the plugins remember")

    def recall(self, task: Task) -> dict[str, JsonValue]:
        """Return what the plugins of a task start from: a copy that they may change."""
        note = self._files.get(task.job)
        if note is None:
            return {}
        return deepcopy(note.before if note.task == task.id else note.after)

    def keep(self, task: Task, after: dict[str, JsonValue]) -> None:
        """Write down what the plugins know after the task."""
        try:
            note = Note(task=task.id, before=self.recall(task), after=after)  # validation makes a deep copy
            size = len(note.model_dump_json(include={"after"}).encode())
        except ValueError:
            raise Refused(
                "what the plugins remember is not JSON: strings, numbers, lists and dictionaries"
            ) from None
        if note.before == note.after:
            return  # most plugins remember nothing
        if size > LARGEST:
            raise TooLarge(f"the plugins remember {size} bytes of the job; {LARGEST} are allowed")
        self._files.put(task.job, note, durable=True)
