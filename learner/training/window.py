"""Batch windows (FedSMB, FedMMB): which examples a task trains on, and where the next task goes on (fedmmb §1, §2).

A learner goes through its examples in passes. Each pass has an order of its own and uses every example once;
a task takes the next few batches of it. The order is drawn with the seed of the task that the pass begins
with, as the first epoch of an ordinary task is: where a task takes all batches of a pass, it is an epoch of
FedAvg, bit for bit.

A bookmark says where the last task began and where it ended. It is written before that task's training, so
that a learner that is killed at any moment goes on as if it had not been: with the same examples if the
update was not committed, with the next ones if it was. Which of the two, the receipt says, and if that was
lost, the next task does.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from pydantic import Field

from hansa.common.data.examples import Examples
from hansa.common.process import faults
from hansa.common.values.bounds import Value
from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Task, Train
from hansa.learner.training.files import JobFiles
from hansa.learner.training.slow import require_wanted

log = logging.getLogger(__name__)
FOLDER = "windows"  # in the state directory: one small file for each job


class Place(Value):
    """A place in a pass: in which order it goes through the examples, and how many of them are used."""

    seed: int = Field(ge=0, lt=1 << 63)
    draw: int = Field(0, ge=0)  # which order of that seed: not the first if a task goes beyond a pass
    row: int = Field(0, ge=0)


@dataclass(frozen=True)
class Window:
    """The examples of one task. They are drawn as they are asked for: a task may ask for any number of batches."""

    start: Place
    seed: int  # of the passes that begin inside of the task
    rows: int  # of the site's data
    size: int  # of a batch
    count: int  # of batches
    end: Place | None  # where the next task goes on; none: with a new pass

    def passes(self, cancelled: Callable[[], bool]) -> Iterator[torch.Tensor]:
        """Yield the row numbers that the task takes of each pass that it touches, in order."""
        left, place = self.count, self.start
        generator = torch.Generator().manual_seed(place.seed)
        for _ in range(place.draw):  # orders that earlier tasks have used
            require_wanted(cancelled)
            torch.randperm(self.rows, generator=generator)
        while left > 0:
            require_wanted(cancelled)
            taken = torch.randperm(self.rows, generator=generator)[place.row :][: left * self.size]
            left -= -(-len(taken) // self.size)
            if len(taken):
                yield taken
            if place.seed != self.seed:
                generator = torch.Generator().manual_seed(self.seed)
            place = Place(seed=self.seed)

    def batches(self, drop_single: bool, cancelled: Callable[[], bool]) -> Iterator[torch.Tensor]:
        """Yield the batches; one of a single row is dropped if asked, as in any epoch, and is used up all the same."""
        if drop_single and min(self.size, self.rows) == 1:
            return  # all have a single row
        for taken in self.passes(cancelled):
            for begin in range(0, len(taken), self.size):
                batch = taken[begin : begin + self.size]
                if not (drop_single and len(batch) == 1):
                    yield batch


def open_window(start: Place, seed: int, rows: int, work: Train) -> Window:
    """Return the next `batches` batches of a pass over so many rows, or those that are left of it.

    A task that asks for steps gets so many batches, if need be of several passes: the pacer that sets steps
    wants sites to be busy for a while, however few examples they have. What begins inside of the task is
    drawn with its `seed`.
    """
    size, wanted = work.batch_size, work.steps or work.batches
    rest = -(-max(0, rows - start.row) // size)  # batches that are left of the pass
    if wanted <= rest or not work.steps:
        count = min(wanted, rest)
        end = start.model_copy(update={"row": start.row + count * size})
    else:
        count, whole = wanted, -(-rows // size)
        further, last = divmod(
            wanted - rest - 1, whole
        )  # passes after the next one, and batches of the last but one
        draw = further + (start.draw + 1 if start.seed == seed else 0)
        end = Place(seed=seed, draw=draw, row=(last + 1) * size)
    return Window(start, seed, rows, size, count, end if end.row < rows else None)


class Bookmark(Value):
    """Where a job's last task began and ended, in which data."""

    task: TaskId
    start: Place
    end: Place | None
    committed: bool = False  # its update is: the next task goes on at `end`
    taken: int = Field(
        0, ge=0
    )  # windows whose updates are committed (the participation counter i of fedmmb §1)
    rows: int = Field(ge=1)
    labels: str  # digest: as many examples may be others


class Windows:
    """The bookmarks of a learner's jobs, in its state directory."""

    def __init__(self, state: Path) -> None:
        self._marks = JobFiles(state / FOLDER, Bookmark, "the place in the data")

    def begin(self, task: Task, work: Train, seed: int, examples: Examples) -> Window:
        """Return what a task trains on. The same task always gets the same."""
        rows = len(examples)
        if not rows:
            return Window(Place(seed=seed), seed, 0, work.batch_size, 0, None)
        kept = self._marks.get(task.job)
        same = kept is not None and task.job in self._marks  # the data do not change while a learner runs
        labels = kept.labels if kept and same else blake3(examples.y.tobytes()).hexdigest()
        held = self._fitting(kept, task, work, rows, labels)
        fresh = Place(seed=seed)
        start, taken = fresh, 0
        if held is not None:
            committed = held.committed or held.task == work.after
            repeated = held.task == task.id
            start = held.start if repeated or not committed else held.end or fresh
            taken = held.taken + (committed and not held.committed)
            if repeated and held.committed:
                return open_window(start, seed, rows, work)  # it was delivered twice: nothing moves
            if not committed and not repeated:
                log.info("task %s repeats the window of task %s, which was not committed", task.id, held.task)
        window = open_window(start, seed, rows, work)
        mark = Bookmark(task=task.id, start=start, end=window.end, taken=taken, rows=rows, labels=labels)
        self._marks.put(task.job, mark, durable=True)
        faults.reach("window-opened")
        return window

    def commit(self, task: Task) -> None:
        """Move on: the controller has the update of a task, and its receipt is here."""
        held = self._marks.get(task.job)
        if held is not None and held.task == task.id and not held.committed:
            moved = held.model_copy(update={"committed": True, "taken": held.taken + 1})
            self._marks.put(
                task.job, moved, durable=False
            )  # if the machine loses it, the next task says it again
            faults.reach("window-used")

    def _fitting(
        self, held: Bookmark | None, task: Task, work: Train, rows: int, labels: str
    ) -> Bookmark | None:
        """Return a job's bookmark if it is of these data; say so if there should be one and is not."""
        if held is None:
            if work.after:
                log.warning("job %s: the place in the data is lost; a new pass begins", task.job)
            return None
        if (held.rows, held.labels) != (rows, labels):
            log.warning(
                "job %s: the data have changed (%d examples, now %d); a new pass begins",
                task.job,
                held.rows,
                rows,
            )
            return None
        if work.after and _number(work.after) > _number(held.task):
            log.warning(
                "job %s: the place in the data is that of task %s, but task %s was committed since; some examples are"
                " used once more than others",
                *(task.job, held.task, work.after),
            )
        return held


def _number(task: str) -> int:
    """Return which task of its job it is: later ones have larger numbers."""
    number = task.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
