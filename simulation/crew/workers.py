"""Worker processes on this machine. Models and updates are in memory that they share with the driver."""

import contextlib
import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from hansa.common.run.nursery import ensure_fork_server
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.results import Failure
from hansa.common.values.tasks import Train
from hansa.simulation.crew.base import Assignment, Crew, Outcome, Paused, Update
from hansa.simulation.crew.blocks import Block, Done, Reference, received, sent
from hansa.simulation.crew.worker import work
from hansa.simulation.data import VirtualData
from hansa.simulation.desk import Desk
from hansa.simulation.slab import Slot
from hansa.simulation.store import SharedStore, SlabModel
from hansa.simulation.traffic import UpdateSizes

BLOCK = 50  # tasks of a block, at most
AHEAD = 2  # blocks that a worker has at a time: it must not wait for the driver
DEATHS = 2  # workers that may die of a task before the task counts as failed
PRELOADED = ["hansa.simulation.crew.worker", "torch._dynamo"]


@dataclass
class _Worker:
    """A worker process and what it has to do."""

    process: ForkServerProcess
    pipe: Connection
    life: Connection  # our end; closed when we end, which ends the worker
    blocks: dict[int, Block] = field(default_factory=dict)
    paused: set[TaskId] = field(default_factory=set)  # trainings that it can go on with
    queue: deque[Assignment] = field(default_factory=deque)  # such trainings, with their next pulse
    over: list[TaskId] = field(default_factory=list)  # paused ones that were withdrawn; it is told later


class Workers(Crew):
    """Gives blocks of tasks to worker processes."""

    def __init__(
        self, count: int, ref: str, data: VirtualData, store: SharedStore, batched: bool = True
    ) -> None:
        self._store = store
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        # It must be pickled once only: the data know their files, which may be a long list.
        self._make = sent(partial(Desk, ref, data, batched=batched))
        self._queue: deque[Assignment] = deque()
        self._alone: deque[Assignment] = deque()  # to be done one by one: a worker died of their block
        self._done: dict[TaskId, Outcome] = {}
        self._withdrawn: set[tuple[int, TaskId]] = set()  # with the number of the block that has it
        self._deaths: Counter[TaskId] = Counter()
        self._numbers = 0
        self._sizes = UpdateSizes()
        self._workers = [self._start() for _ in range(count)]

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Queue tasks; they are handed out when somebody waits for an outcome.

        A paused training goes to the worker that has it: any other one would have to begin again.
        """
        for assignment in assignments:
            having = self._having(assignment.task.id) if assignment.pulses else None
            (having.queue if having else self._queue).append(assignment)

    def _having(self, task: TaskId) -> _Worker | None:
        return next((worker for worker in self._workers if task in worker.paused), None)

    def withdraw(self, task: TaskId) -> None:
        """Forget a task; if a worker has it, its outcome is thrown away."""
        having = self._having(task)
        if having:
            having.paused.discard(task)
            having.over.append(task)
        for queue in (self._queue, self._alone, *(worker.queue for worker in self._workers)):
            for assignment in queue:
                if assignment.task.id == task:
                    queue.remove(assignment)
                    return
        outcome = self._done.pop(task, None)
        if outcome is not None:
            self._throw_away(outcome)
        for block in (block for worker in self._workers for block in worker.blocks.values()):
            if any(assignment.task.id == task for assignment in block.assignments):
                self._withdrawn.add((block.number, task))  # the same task may be submitted again

    def outcome(self, task: TaskId) -> Outcome:
        """Wait for the outcome of a task."""
        while task not in self._done:
            self._hand_out()
            self._collect()
        return self._done.pop(task)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.life.close()
            worker.pipe.close()
            worker.process.kill()  # they hold nothing that anybody needs
        for worker in self._workers:
            worker.process.join()
        self._workers = []

    def _start(self) -> _Worker:
        ensure_fork_server()
        ours, theirs = self._context.Pipe()
        watched, life = self._context.Pipe(duplex=False)
        arguments = (theirs, watched, self._make, self._store.slab.path, str(Path.cwd()))
        process = self._context.Process(target=work, args=arguments, name="hansa-worker", daemon=True)
        process.start()
        theirs.close()
        watched.close()
        return _Worker(process, ours, life)

    # Handing out.

    def _hand_out(self) -> None:
        """Give every worker blocks until it has enough."""
        size = -(-len(self._queue) // (AHEAD * len(self._workers)))
        for _ in range(AHEAD):
            for worker in self._workers:
                if len(worker.blocks) < AHEAD and (worker.queue or self._alone or self._queue):
                    self._give(worker, self._next(worker, max(1, min(BLOCK, size))))

    def _next(self, worker: _Worker, size: int) -> list[Assignment]:
        if worker.queue:
            return [worker.queue.popleft()]
        if self._alone:
            return [self._alone.popleft()]
        return [self._queue.popleft() for _ in range(min(size, len(self._queue)))]

    def _give(self, worker: _Worker, assignments: list[Assignment]) -> None:
        self._numbers += 1
        keys = {key for assignment in assignments for key in assignment.task.models}
        models = {key: self._reference(key) for key in keys}
        slots = tuple(self._slot(assignment) for assignment in assignments)
        block = Block(self._numbers, tuple(assignments), models, slots, tuple(worker.over))
        worker.over.clear()
        worker.blocks[block.number] = block
        with contextlib.suppress(OSError):  # it has died, which `_collect` sees
            worker.pipe.send_bytes(sent(block))

    def _reference(self, key: ModelKey) -> Reference:
        with self._store.open(key) as model:
            if isinstance(model, SlabModel):
                return Reference(model.manifest, model.slot)
            frames = (model.read(index) for index in range(model.layout.frames))
            return Reference(model.manifest, b"".join(frames))

    def _slot(self, assignment: Assignment) -> Slot | None:
        """Return a slot for the update of a task, if it makes one whose size is known."""
        task = assignment.task
        if not isinstance(task.work, Train) or self._store.full:
            return None
        with self._store.open(task.models[0]) as model:
            size = self._sizes.of(task.work, model.manifest.spec)
        return self._store.slab.take(size) if size else None

    # Collecting.

    def _collect(self) -> None:
        """Wait until a worker has done a block or has died."""
        by: dict[Any, _Worker] = {
            each: worker for worker in self._workers for each in (worker.pipe, worker.process.sentinel)
        }
        for ready in wait(list(by)):
            worker = by[ready]
            if worker not in self._workers:
                continue  # it has died, which both of its ends say
            try:
                if ready is worker.pipe or worker.pipe.poll():
                    self._enter(worker, received(worker.pipe.recv_bytes()))
                    continue
            except (EOFError, OSError):
                pass
            self._bury(worker)

    def _enter(self, worker: _Worker, done: Done) -> None:
        block = worker.blocks.pop(done.number)
        for assignment, outcome, slot in zip(block.assignments, done.outcomes, block.slots, strict=True):
            result = outcome.result
            used = isinstance(result, Update) and result.payload == slot
            if slot is not None and not used:
                self._store.slab.give_back(slot)
            if isinstance(result, Paused):
                worker.paused.add(assignment.task.id)
            else:
                worker.paused.discard(assignment.task.id)
            if (block.number, assignment.task.id) in self._withdrawn:
                self._withdrawn.discard((block.number, assignment.task.id))
                self._throw_away(outcome)
                if assignment.task.id in worker.paused:
                    worker.paused.discard(assignment.task.id)
                    worker.over.append(assignment.task.id)
            else:
                self._done[assignment.task.id] = outcome

    def _throw_away(self, outcome: Outcome) -> None:
        if isinstance(outcome.result, Update) and isinstance(outcome.result.payload, Slot):
            self._store.slab.give_back(outcome.result.payload)

    def _bury(self, worker: _Worker) -> None:
        """Start another worker in place of one that died; its tasks are done again, one by one."""
        worker.process.join()
        worker.life.close()
        worker.pipe.close()
        self._workers.remove(worker)
        self._workers.append(self._start())
        self._queue.extend(worker.queue)  # others begin them again from their start
        how = _how(worker.process.exitcode)
        # A worker does its blocks in order, so only the first of them can have ended it.
        first = min(worker.blocks, default=None)
        for number, block in sorted(worker.blocks.items()):
            for assignment, slot in zip(block.assignments, block.slots, strict=True):
                if slot is not None:
                    self._store.slab.give_back(slot)
                task = assignment.task
                if (number, task.id) in self._withdrawn:
                    self._withdrawn.discard((number, task.id))
                    continue
                if number == first:
                    self._deaths[task.id] += 1
                if self._deaths[task.id] < DEATHS:
                    self._alone.append(assignment)
                else:
                    why = f"it ended {DEATHS} worker processes, the last one {how}"
                    self._done[task.id] = Outcome(Failure(reason=why))


def _how(code: int | None) -> str:
    """Describe how a process ended."""
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"
