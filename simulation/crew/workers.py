"""Worker processes on this machine. Models and updates are in memory that they share with the driver."""

import contextlib
import multiprocessing
import signal
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from hansa.common.run.nursery import ensure_fork_server
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import ModelKey, TaskId
from hansa.common.values.tasks import Train
from hansa.simulation.batched.agreement import wanted
from hansa.simulation.clock.traffic import UpdateSizes
from hansa.simulation.crew.base import Assignment
from hansa.simulation.crew.block_crew import BlockCrew, Worker
from hansa.simulation.crew.blocks import Block, Done, Ready, Reference, received, sent, whole_payload
from hansa.simulation.crew.worker import work
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.sites.desk import Desk
from hansa.simulation.storage.slab import Slot
from hansa.simulation.storage.store import SharedStore, SlabModel

PRELOADED = ["hansa.simulation.crew.worker", "torch._dynamo"]


@dataclass(eq=False, kw_only=True)
class _Process(Worker):
    """A worker process."""

    process: ForkServerProcess
    pipe: Connection  # it ends when we do, which ends the worker


class Workers(BlockCrew[_Process]):
    """Gives blocks of tasks to worker processes."""

    noun = "worker processes"

    def __init__(
        self, count: int, ref: str, data: VirtualData, store: SharedStore, batched: bool = True
    ) -> None:
        super().__init__(store, wanted(batched, len(data.names)))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        # It must be pickled once only: the data know their files, which may be a long list.
        self._make = sent(partial(Desk, ref, data, batched=batched))
        self._sizes = UpdateSizes()
        self.workers = [self.start() for _ in range(count)]

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()  # they hold nothing that anybody needs
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    def start(self) -> _Process:
        """Fork a worker."""
        ensure_fork_server()
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self._make, self.store.slab.path, str(Path.cwd()))
        process = self._context.Process(target=work, args=arguments, name="hansa-worker", daemon=True)
        process.start()
        theirs.close()
        return _Process(process=process, pipe=ours)

    # Handing out.

    def pack(self, number: int, assignments: tuple[Assignment, ...], over: tuple[TaskId, ...]) -> Block:
        """Return a block with places in the shared memory."""
        keys = {key for assignment in assignments for key in assignment.task.models}
        models = {key: self._reference(key) for key in keys}
        return Block(number, assignments, models, tuple(map(self._slot, assignments)), over)

    def give(self, worker: _Process, block: Block) -> None:
        """Send a block through a worker's pipe."""
        with contextlib.suppress(OSError):  # it has died
            worker.pipe.send_bytes(sent(block))

    def _reference(self, key: ModelKey) -> Reference:
        with self.store.open(key) as model:
            payload = model.slot if isinstance(model, SlabModel) else whole_payload(model)
            return Reference(model.manifest, payload)

    def _slot(self, assignment: Assignment) -> Slot | None:
        """Return a slot for the update of a task, if it makes one whose size is known."""
        task = assignment.task
        if not isinstance(task.work, Train) or self.store.full:
            return None
        with self.store.open(task.models[0]) as model:
            size = self._sizes.of(task.work, model.manifest.spec)
        return self.store.slab.take(size) if size else None

    # Collecting.

    def collect(self) -> None:
        """Wait until a worker is ready, has done a block or has died."""
        by: dict[Any, _Process] = {
            each: worker for worker in self.workers for each in (worker.pipe, worker.process.sentinel)
        }
        for ready in wait(list(by)):
            worker = by[ready]
            if worker not in self.workers:
                continue  # it has died, which both of its ends say
            try:
                if ready is worker.pipe or worker.pipe.poll():
                    self._hear(worker, received(worker.pipe.recv_bytes()))
                    continue
            except (EOFError, OSError):
                pass
            worker.process.join()
            worker.pipe.close()
            self.bury(worker, _how(worker.process.exitcode))

    def _hear(self, worker: _Process, message: Ready | Done) -> None:
        if isinstance(message, Done):
            self.enter(worker, message.number, message.outcomes)
        elif message.problem:
            raise HansaError(f"a worker process cannot begin: {message.problem}")
        else:
            self.welcome(worker)


def _how(code: int | None) -> str:
    """Describe how a process ended."""
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"
