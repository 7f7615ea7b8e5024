"""Batch windows (FedSMB, FedMMB): which examples a task trains on, and where the next task goes on.

A learner goes through its examples in passes (fedmmb §1, §2). Each pass has an order of its own and uses
every example once; a task takes the next few batches of it. The order is drawn with the seed of the task that
starts the pass, like the first epoch of an ordinary task. So a task that takes all batches of a pass is an
epoch of FedAvg, bit for bit.

A bookmark records where the last task began and ended. It is written before that task's training, so that a
learner that is killed at any moment goes on as if it had not been: with the same examples if the update was
not committed, with the next ones if it was. The receipt tells which; if the receipt was lost, the next task
does.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from blake3 import blake3
from pydantic import Field

from hansa.common.data.examples import Examples
from hansa.common.data.lazy import AnyExamples
from hansa.common.process import faults
from hansa.common.site.files import Files
from hansa.common.values.bounds import Value
from hansa.common.values.ids import JobId, TaskId
from hansa.common.values.tasks import Task, Train
from hansa.learner.training.files import JobFiles
from hansa.learner.training.slow import require_wanted

log = logging.getLogger(__name__)
FOLDER = "windows"  # in the state directory: one small file for each job


class Place(Value):
    """A place in a pass: the order of the examples, and how many of them are used."""

    seed: int = Field(ge=0, lt=1 << 63)
    draw: int = Field(0, ge=0)  # which order of that seed; later ones if a task covers several passes
    row: int = Field(0, ge=0)


@dataclass(frozen=True)
class Window:
    """The examples of one task. They are drawn on demand: a task may have any number of batches."""

    start: Place
    seed: int  # of the passes that begin within the task
    rows: int  # of the site's data
    size: int  # of a batch
    count: int  # of batches
    end: Place | None  # where the next task goes on; None: with a new pass

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
        """Yield the batches; with `drop_single` those of one row are left out, but count as used."""
        if drop_single and min(self.size, self.rows) == 1:
            return  # all batches have a single row
        for taken in self.passes(cancelled):
            for begin in range(0, len(taken), self.size):
                batch = taken[begin : begin + self.size]
                if not (drop_single and len(batch) == 1):
                    yield batch


def open_window(start: Place, seed: int, rows: int, work: Train) -> Window:
    """Return the next `batches` batches of a pass over `rows` rows, or those that are left of it.

    A task that asks for steps gets that many batches, if need be from several passes: a pacer that sets steps
    wants sites to be busy for a certain time, however few examples they have. Passes that begin within the
    task are drawn with its `seed`.
    """
    size, wanted = work.batch_size, work.steps or work.batches
    rest = -(-max(0, rows - start.row) // size)  # batches left in the pass
    if wanted <= rest or not work.steps:
        count = min(wanted, rest)
        end = start.model_copy(update={"row": start.row + count * size})
    else:
        count, whole = wanted, -(-rows // size)
        # Passes after the next one, and the batches of the last pass, less one.
        further, last = divmod(wanted - rest - 1, whole)
        draw = further + (start.draw + 1 if start.seed == seed else 0)
        end = Place(seed=seed, draw=draw, row=(last + 1) * size)
    return Window(start, seed, rows, size, count, end if end.row < rows else None)


class Bookmark(Value):
    """Where a job's last task began and ended, and in which data."""

    task: TaskId
    start: Place
    end: Place | None
    committed: bool = False  # its update was committed: the next task goes on at `end`
    taken: int = Field(0, ge=0)  # windows with committed updates (the participation counter i of fedmmb §1)
    rows: int = Field(ge=1)
    labels: str  # their digest: other data may have the same number of rows


class Windows:
    """The bookmarks of a learner's jobs, among its files."""

    def __init__(self, files: Files) -> None:
        self._marks = JobFiles(files.folder(FOLDER), Bookmark, "the place in the data")

    def bookmark(self, job: JobId) -> Bookmark | None:
        """Return a job's bookmark, if there is one."""
        return self._marks.get(job)

    def begin(self, task: Task, work: Train, seed: int, examples: AnyExamples) -> Window:
        """Return what a task trains on; the same task always gets the same window."""
        rows = len(examples)
        if not rows:
            return Window(Place(seed=seed), seed, 0, work.batch_size, 0, None)
        stored = self._marks.get(task.job)
        same = stored is not None and task.job in self._marks  # the data do not change while a learner runs
        labels = stored.labels if stored and same else _digest(examples)
        mark = self._fitting(stored, task, work, rows, labels)
        new_pass = Place(seed=seed)
        start, taken = new_pass, 0
        if mark is not None:
            committed = mark.committed or mark.task == work.after
            repeated = mark.task == task.id
            start = mark.start if repeated or not committed else mark.end or new_pass
            taken = mark.taken + (committed and not mark.committed)
            if repeated and mark.committed:
                return open_window(start, seed, rows, work)  # the task was delivered twice: nothing moves
            if not committed and not repeated:
                log.info("task %s repeats the window of task %s, which was not committed", task.id, mark.task)
        window = open_window(start, seed, rows, work)
        mark = Bookmark(task=task.id, start=start, end=window.end, taken=taken, rows=rows, labels=labels)
        self._marks.put(task.job, mark, durable=True)
        faults.reach("window-opened")
        return window

    def commit(self, task: Task) -> None:
        """Move on: the controller has the update of a task, and its receipt has arrived."""
        mark = self._marks.get(task.job)
        if mark is not None and mark.task == task.id and not mark.committed:
            moved = mark.model_copy(update={"committed": True, "taken": mark.taken + 1})
            # Not durable: if the machine loses it, the next task names the committed one again.
            self._marks.put(task.job, moved, durable=False)
            faults.reach("window-used")

    def _fitting(
        self, mark: Bookmark | None, task: Task, work: Train, rows: int, labels: str
    ) -> Bookmark | None:
        """Return a job's bookmark if it fits these data; warn if one is missing or outdated."""
        if mark is None:
            if work.after:
                log.warning("job %s: the place in the data is lost; a new pass begins", task.job)
            return None
        if (mark.rows, mark.labels) != (rows, labels):
            log.warning(
                "job %s: the data have changed (%d examples, now %d); a new pass begins",
                *(task.job, mark.rows, rows),
            )
            return None
        if work.after and _number(work.after) > _number(mark.task):
            log.warning(
                "job %s: the place in the data is that of task %s, but task %s was committed since; some"
                " examples are used once more than others",
                *(task.job, mark.task, work.after),
            )
        return mark


def _digest(examples: AnyExamples) -> str:
    """Return the digest of the labels; a Dataset without them is recognised by its length alone."""
    labels = examples.y if isinstance(examples, Examples) else examples.labels
    return blake3(b"" if labels is None else labels.tobytes()).hexdigest()


def _number(task: str) -> int:
    """Return the number of a task within its job: later ones have larger numbers."""
    number = task.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
