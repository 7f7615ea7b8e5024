"""Light sites: many learners in a few processes, without PyTorch; they speak the real wire and train nothing.

Each site has a connection of its own (gRPC would share one among the sites of a process). The sites of a
process share one payload: a downloaded frame is dropped at once, and every update is that payload, so
clients stay small.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import grpc
import numpy as np
from harness import end_process

from hansa.common.models.frames import Layout, pack, seal
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.rpc.channel import CLIENT
from hansa.common.rpc.methods import Stub
from hansa.common.site.attendance import Attendance
from hansa.common.site.connection import Identity
from hansa.common.site.transfer import hand_in
from hansa.common.values.errors import Stale
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.protos import fleet_pb2 as fleet

APP = "benchmarks/light.py:app"  # never imported: the sites say that they have it
TENSORS = 8


def light_spec(parameters: int) -> ModelSpec:
    """Return a model of float32 parameters in a few tensors."""
    sizes = [len(part) for part in np.array_split(np.empty(parameters, dtype=np.uint8), TENSORS)]
    return ModelSpec(
        tuple(TensorInfo(f"tensor{i}", "float32", (n,), Role.PARAM) for i, n in enumerate(sizes))
    )


def light_payload(spec: ModelSpec, seed: int) -> np.ndarray:
    """Return the payload of a model with random numbers below one."""
    rng = np.random.default_rng(seed)
    return pack(spec, {info.name: rng.random(info.shape, dtype=np.float32) for info in spec.tensors})


class _Site:
    """One learner. `think` is how long it pretends to train, on average."""

    def __init__(self, address: str, name: str, manifest: Manifest, payload: np.ndarray, think: Any) -> None:
        self.attendance = Attendance(Identity(address, SiteName(name), "learner"), self._states)
        options = [*CLIENT, ("grpc.use_local_subchannel_pool", 1)]
        connection = self.attendance.connection
        connection.channel = grpc.aio.insecure_channel(address, options=options)
        connection.stub = Stub(connection.channel, fleet.DESCRIPTOR.services_by_name["Fleet"])
        self._manifest, self._payload, self._think = manifest, payload, think
        self._tasks: asyncio.Queue[Task] = asyncio.Queue()
        self._hand: list[TaskId] = []
        self._offered: tuple[JobId, float] | None = None
        self.waits: list[float] = []  # seconds from an upload's start to the next task in hand

    def _states(self) -> list[fleet.AppState]:
        return [fleet.AppState(ref=APP, examples=10, task="own", classes=2)]

    def in_hand(self) -> list[TaskId]:
        return self._hand

    def take(self, task: Task) -> None:
        offered, self._offered = self._offered, None
        if offered is not None and offered[0] == task.job:
            self.waits.append(time.monotonic() - offered[1])
        self._hand.append(task.id)
        self._tasks.put_nowait(task)

    def cancel(self, task: TaskId, reason: str) -> None:
        """Do nothing: work that is under way finds out by itself."""

    async def work(self) -> None:
        facts = UpdateFacts(n_train=10, n_used=10, steps=1, epochs=1, seconds=0)
        while True:
            task = await self._tasks.get()
            with suppress(Stale):  # the job may have ended meanwhile
                if isinstance(task.work, Train):
                    await self.attendance.insist(lambda key=task.work.model: self._fetch(key))  # type: ignore[misc]
                if self._think.value:
                    await asyncio.sleep(random.expovariate(1 / self._think.value))
                self._offered = (task.job, time.monotonic()) if isinstance(task.work, Train) else None
                await hand_in(self.attendance, task.id, self._manifest, self._payload, facts)
            self._hand.remove(task.id)

    async def _fetch(self, key: ModelKey) -> None:
        request = fleet.FetchRequest(site=self.attendance.identity.site, model=key)
        async with self.attendance.apart(self._payload.nbytes) as stub:
            async for _ in stub.Fetch(request):
                pass


def _sites(address: str, names: Sequence[str], parameters: int, think: Any, parent: Connection) -> None:
    """Act as some sites until the parent hangs up; return their waits when it asks."""
    spec = light_spec(parameters)
    payload = light_payload(spec, seed=len(names[0]) + int(names[0].rpartition("-")[2]))
    assert payload.size == Layout(spec).size
    manifest = seal(spec, payload)

    async def live() -> None:
        sites = [_Site(address, name, manifest, payload, think) for name in names]
        ready = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            for site in sites:
                group.create_task(site.attendance.attend(site, lambda _: ready.release()))
                group.create_task(site.work())
            for _ in sites:
                await ready.acquire()
            parent.send("ready")
            while await asyncio.to_thread(parent.recv):
                parent.send([wait for site in sites for wait in site.waits])
                for site in sites:
                    site.waits.clear()

    with suppress(EOFError):
        asyncio.run(live())


class LightSites:
    """Some sites in a few processes. Use it as a context manager: leaving ends every process."""

    def __init__(self, address: str, sites: int, parameters: int, processes: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self.think = self._context.Value("d", 0.0)
        names = [f"site-{n}" for n in range(1, sites + 1)]
        self._shares = [names[i::processes] for i in range(min(processes, sites))]
        self._arguments = (parameters, self.think)
        self._address = address
        self._exit = ExitStack()
        self._lines: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> "LightSites":
        with self._exit:
            for share in self._shares:
                self._start(share)
            for line in self._lines:
                line.recv()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._exit.close()

    def _start(self, names: Sequence[str]) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (self._address, names, *self._arguments, theirs)
        process = self._context.Process(target=_sites, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._exit.callback(end_process, process)
        self._lines.append(ours)
        self._processes.append(process)

    def check(self) -> None:
        """Raise if a process has died: its sites would never answer."""
        if not all(process.is_alive() for process in self._processes):
            raise RuntimeError("a process of light sites has ended; see above")

    def waits(self) -> list[float]:
        """Return, and forget, how long sites waited from an upload's start for the next task, in seconds."""
        for line in self._lines:
            line.send(True)
        return [wait for line in self._lines for wait in line.recv()]
