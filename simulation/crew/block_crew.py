"""A crew that gives blocks of tasks to workers: worker processes, or actors on other machines."""

import logging
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hansa.common.values.errors import HansaError
from hansa.common.values.ids import TaskId
from hansa.common.values.results import Failure
from hansa.simulation.crew.base import Assignment, Crew, Outcome, Paused, Update
from hansa.simulation.crew.blocks import Block
from hansa.simulation.storage.slab import Slot
from hansa.simulation.storage.store import SharedStore

log = logging.getLogger(__name__)

BLOCK = 64  # tasks of a block, at most
TOGETHER = 32  # of quick tasks at least: small clients are trained together
QUICK = 0.002  # seconds of training
AHEAD = 2  # blocks that a worker has at a time: it must not wait for the driver
DEATHS = 2  # workers that may die of a task before the task counts as failed
STARTS = 3  # workers that may die one after another before any of them is ready


@dataclass(eq=False)
class Worker:
    """Somebody who does blocks, in the order in which they are given."""

    blocks: dict[int, Block] = field(default_factory=dict)
    ready: bool = False
    paused: set[TaskId] = field(default_factory=set)  # trainings that it can go on with
    # Such trainings, with their next pulse.
    queue: OrderedDict[TaskId, Assignment] = field(default_factory=OrderedDict)
    over: list[TaskId] = field(default_factory=list)  # paused ones that were withdrawn; it is told later


W = TypeVar("W", bound=Worker)


class BlockCrew(Crew, Generic[W]):
    """Hands out tasks, collects their outcomes, and lets the tasks of workers that died be done again."""

    noun = "workers"  # what messages call them

    def __init__(self, store: SharedStore, batched: bool) -> None:
        """If it is `batched`, quick tasks are kept together, even if other workers have nothing to do."""
        self.store = store
        self._batched = batched
        self.workers: list[W] = []
        self._queue: OrderedDict[TaskId, Assignment] = OrderedDict()
        # To be done one by one: a worker died of their block.
        self._alone: OrderedDict[TaskId, Assignment] = OrderedDict()
        # The blocks in which workers have them: a task that was withdrawn may be submitted again.
        self._given: dict[TaskId, int] = {}
        self._done: dict[TaskId, Outcome] = {}
        self._deaths: Counter[TaskId] = Counter()
        self._numbers = 0
        self._false_starts = 0
        self._quick = False  # whether the tasks of the last block were

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Queue tasks; they are handed out when somebody waits for an outcome.

        A paused training goes to the worker that has it: any other one would have to begin again.
        """
        for assignment in assignments:
            task = assignment.task.id
            having = self._having(task) if assignment.pulses else None
            (having.queue if having else self._queue)[task] = assignment

    def _having(self, task: TaskId) -> W | None:
        return next((worker for worker in self.workers if task in worker.paused), None)

    def withdraw(self, task: TaskId) -> None:
        """Forget a task; if a worker has it, its outcome is thrown away."""
        having = self._having(task)
        if having:
            having.paused.discard(task)
            having.queue.pop(task, None)
            having.over.append(task)
        self._queue.pop(task, None)
        self._alone.pop(task, None)
        self._given.pop(task, None)
        self._deaths.pop(task, None)
        outcome = self._done.pop(task, None)
        if outcome is not None:
            self._throw_away(outcome)

    def outcome(self, task: TaskId) -> Outcome:
        """Wait for the outcome of a task."""
        while task not in self._done:
            self._hand_out()
            self.collect()
        return self._done.pop(task)

    # What workers of each kind do in their own way.

    @abstractmethod
    def start(self) -> W:
        """Start a worker."""

    @abstractmethod
    def pack(self, number: int, assignments: tuple[Assignment, ...], over: tuple[TaskId, ...]) -> Block:
        """Return a block of tasks with what its workers need."""

    @abstractmethod
    def give(self, worker: W, block: Block) -> None:
        """Send a block to a worker. If the worker is dead, `collect` notices."""

    @abstractmethod
    def collect(self) -> None:
        """Wait until a worker is ready (`welcome`), has done a block (`enter`) or has died (`bury`)."""

    # Handing out.

    def _hand_out(self) -> None:
        """Give every worker that is ready blocks until it has enough."""
        size = -(-len(self._queue) // (AHEAD * len(self.workers)))
        for _ in range(AHEAD):
            for worker in self.workers:
                waiting = worker.queue or self._alone or self._queue
                if worker.ready and len(worker.blocks) < AHEAD and waiting:
                    self._hand(worker, max(TOGETHER if self._quick else 1, min(BLOCK, size)))

    def _hand(self, worker: W, size: int) -> None:
        queue = worker.queue or self._alone or self._queue
        size = min(size, len(queue)) if queue is self._queue else 1
        assignments = tuple(queue.popitem(last=False)[1] for _ in range(size))
        self._numbers += 1
        block = self.pack(self._numbers, assignments, tuple(worker.over))
        worker.over.clear()
        self._given.update((assignment.task.id, block.number) for assignment in assignments)
        worker.blocks[block.number] = block
        self.give(worker, block)

    # Collecting.

    def welcome(self, worker: W) -> None:
        """Take note that a worker is ready."""
        worker.ready = True
        self._false_starts = 0

    def enter(self, worker: W, number: int, outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes of a block."""
        block = worker.blocks.pop(number)
        updates = [outcome.result for outcome in outcomes if isinstance(outcome.result, Update)]
        self._quick = (
            self._batched and bool(updates) and all(update.facts.seconds < QUICK for update in updates)
        )
        for assignment, outcome, slot in zip(block.assignments, outcomes, block.slots, strict=True):
            result, task = outcome.result, assignment.task.id
            used = isinstance(result, Update) and result.payload == slot
            if slot is not None and not used:
                self.store.slab.give_back(slot)
            worker.paused.discard(task)
            paused = isinstance(result, Paused)
            if self._given.get(task) == number:
                del self._given[task]
                self._deaths.pop(task, None)
                self._done[task] = outcome
                if paused:
                    worker.paused.add(task)
            else:  # it was withdrawn
                self._throw_away(outcome)
                if paused:
                    worker.over.append(task)

    def _throw_away(self, outcome: Outcome) -> None:
        if isinstance(outcome.result, Update) and isinstance(outcome.result.payload, Slot):
            self.store.slab.give_back(outcome.result.payload)

    def bury(self, worker: W, how: str, blamed: bool = True) -> None:
        """Start another worker in place of one that died; its tasks are done again, one by one.

        `how` it died; `blamed`: one of its tasks may be the cause.
        """
        self.workers.remove(worker)
        log.warning("one of the %s died %s; it is replaced, and its tasks are done again", self.noun, how)
        self._false_starts += not worker.ready
        if self._false_starts >= STARTS:
            raise HansaError(f"{STARTS} {self.noun} died before they were ready, the last one {how}")
        self.workers.append(self.start())
        self._queue.update(worker.queue)  # others begin them again from their start
        # A worker does its blocks in order, so only the first of them can have ended it.
        first = min(worker.blocks, default=None)
        for number, block in sorted(worker.blocks.items()):
            for assignment, slot in zip(block.assignments, block.slots, strict=True):
                if slot is not None:
                    self.store.slab.give_back(slot)
                if self._given.get(assignment.task.id) == number:  # otherwise it was withdrawn
                    self._do_again(assignment, how, blamed and number == first)

    def _do_again(self, assignment: Assignment, how: str, blamed: bool) -> None:
        task = assignment.task.id
        del self._given[task]
        self._deaths[task] += blamed
        if self._deaths[task] < DEATHS:
            self._alone[task] = assignment
        else:
            del self._deaths[task]
            self._done[task] = Outcome(Failure(reason=f"it ended {DEATHS} {self.noun}, the last one {how}"))
