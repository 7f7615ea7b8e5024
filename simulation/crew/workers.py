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

from hansa.common.models.frames import Layout
from hansa.common.run.nursery import ensure_fork_server
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.results import Failure
from hansa.common.values.tasks import Train
from hansa.controller.transfers.wanted import wanted_update
from hansa.simulation.crew.base import Assignment, Crew, Outcome, Update
from hansa.simulation.crew.blocks import Block, Done, Reference, received, sent
from hansa.simulation.crew.worker import work
from hansa.simulation.data import VirtualData
from hansa.simulation.desk import Desk
from hansa.simulation.slab import Slot
from hansa.simulation.store import SharedStore, SlabModel

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
        self._withdrawn: set[TaskId] = set()
        self._deaths: Counter[TaskId] = Counter()
        self._numbers = 0
        self._sizes: dict[tuple[object, ...], int | None] = {}
        self._workers = [self._start() for _ in range(count)]

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Queue tasks; they are handed out when somebody waits for an outcome."""
        self._queue.extend(assignments)

    def withdraw(self, task: TaskId) -> None:
        """Forget a task; if a worker has it, its outcome is thrown away."""
        for queue in (self._queue, self._alone):
            for assignment in queue:
                if assignment.task.id == task:
                    queue.remove(assignment)
                    return
        outcome = self._done.pop(task, None)
        if outcome is not None:
            self._throw_away(outcome)
        else:
            self._withdrawn.add(task)

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
                if len(worker.blocks) < AHEAD and (self._alone or self._queue):
                    self._give(worker, self._next(max(1, min(BLOCK, size))))

    def _next(self, size: int) -> list[Assignment]:
        if self._alone:
            return [self._alone.popleft()]
        return [self._queue.popleft() for _ in range(min(size, len(self._queue)))]

    def _give(self, worker: _Worker, assignments: list[Assignment]) -> None:
        self._numbers += 1
        keys = {key for assignment in assignments for key in assignment.task.models}
        models = {key: self._reference(key) for key in keys}
        slots = tuple(self._slot(assignment) for assignment in assignments)
        block = Block(self._numbers, tuple(assignments), models, slots)
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
        if not isinstance(task.work, Train) or task.work.encoding is not None or self._store.full:
            return None
        with self._store.open(task.models[0]) as model:
            kind = (task.work.tensors, task.work.auxiliary, model.manifest.spec)
        if kind not in self._sizes:
            self._sizes[kind] = Layout(wanted_update(task.work, model.manifest.spec)[0]).size
        size = self._sizes[kind]
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
            if assignment.task.id in self._withdrawn:
                self._withdrawn.discard(assignment.task.id)
                self._throw_away(outcome)
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
        how = _how(worker.process.exitcode)
        # A worker does its blocks in order, so only the first of them can have ended it.
        first = min(worker.blocks, default=None)
        for number, block in sorted(worker.blocks.items()):
            for assignment, slot in zip(block.assignments, block.slots, strict=True):
                if slot is not None:
                    self._store.slab.give_back(slot)
                task = assignment.task
                if task.id in self._withdrawn:
                    self._withdrawn.discard(task.id)
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
