"""Helpers for tests: a controller in this process, light sites on the real wire, models."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from hansa.common.job.spec import JobSpec
from hansa.common.models.frames import Layout, pack, seal, views
from hansa.common.models.model import Manifest, ModelSpec, Role, TensorInfo
from hansa.common.process.clock import SystemClock
from hansa.common.rpc.channel import CLIENT
from hansa.common.rpc.guard import Guard, Limits
from hansa.common.rpc.methods import Stub
from hansa.common.rpc.tls import ServerTls
from hansa.common.site.attendance import Attendance
from hansa.common.site.connection import Identity
from hansa.common.site.transfer import Fetcher, hand_in
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.common.values.views import StatusView
from hansa.controller.federation import Federation
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.server import make_server, services
from hansa.controller.storage.backends import opened
from hansa.controller.storage.journal.base import JobRecord, Journal, checksum, checksum_of
from hansa.controller.transfers.gate import Place
from hansa.protos import fleet_pb2

APP = "tests/app.py:app"
STATUS = StatusView(
    controller="test",
    version="0",
    pid=0,
    address="",
    store="",
    state="",
    since="",
    sites=0,
    jobs={},
    peak_memory_mib=0,
)


def small_spec(rows: int = 3) -> ModelSpec:
    """Return the spec of a model with a matrix, a statistic and a counter."""
    return ModelSpec(
        (
            TensorInfo("layer.weight", "float32", (rows, 4), Role.PARAM, 0),
            TensorInfo("norm.mean", "float32", (4,), Role.STAT, 0),
            TensorInfo("norm.count", "int64", (), Role.COUNT, 0),
        ),
        ("layer",),
    )


def filled(spec: ModelSpec, value: float) -> dict[str, np.ndarray]:
    """Return arrays of a spec, all filled with one value."""
    from hansa.common.models.model import DTYPES

    return {info.name: np.full(info.shape, value, dtype=DTYPES[info.dtype]) for info in spec.tensors}


def sealed(spec: ModelSpec, arrays: dict[str, np.ndarray]) -> tuple[Manifest, np.ndarray]:
    """Return manifest and payload of arrays."""
    payload = pack(spec, arrays)
    return seal(spec, payload), payload


def job(**changes: Any) -> JobSpec:
    """Return a job for light sites; keyword arguments override its fields."""
    base: dict[str, Any] = {
        "name": "test",
        "app": APP,
        "pace": {"kind": "sync", "rounds": 2},
        "sites": {"min": 1},
    }
    return JobSpec.model_validate(base | changes)


@dataclass
class Served:
    """A controller in this process, listening on loopback."""

    address: str
    federation: Federation
    journal: Journal
    guard: Guard

    @property
    def jobs(self) -> Jobs:
        return self.federation.jobs

    async def submit(
        self,
        spec: JobSpec,
        manifest: Manifest | None,
        frames: AsyncIterator[bytes],
        reference: Manifest | None = None,
    ) -> JobRunner:
        """Submit a job without the network."""
        return await self.federation.admission.submit(spec, manifest, frames, reference=reference)


@asynccontextmanager
async def serving(
    folder: Path,
    store: str = "",
    heartbeat: float = 5.0,
    grace: float = 15.0,
    listen: str = "127.0.0.1:0",
    tls: Path | None = None,
    limits: Limits | None = None,
    trained: Callable[[float], None] = lambda _: None,
    keep_days: float | None = None,
) -> AsyncIterator[Served]:
    """Run a controller with real gRPC over a state directory."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    with opened(store or f"disk:{folder / 'store'}", folder) as held:
        backends, clock = (held.store, held.journal), SystemClock()
        async with Federation(*backends, clock, heartbeat, grace, keep_days=keep_days) as federation:
            secure = ServerTls(tls) if tls else None
            guard = Guard(secure, limits, federation.audit.refused)
            server = make_server(guard)
            server.add_generic_rpc_handlers(services(federation, STATUS, trained=trained))
            held_open = server.add_secure_port(listen, secure.server_credentials()) if secure else None
            port = held_open or server.add_insecure_port(listen)
            await server.start()
            try:
                yield Served(f"127.0.0.1:{port}", federation, held.journal, guard)
            finally:
                await server.stop(grace=None)


Answer = Callable[["LightSite", Task], Awaitable[None]]


@dataclass
class LightSite:
    """A site without PyTorch: real wire, hand-made updates. `answer` decides what it does with a task."""

    address: str
    name: str
    role: str = "learner"
    app: str = APP
    error: str = ""
    examples: int = 10
    task: str = "own"
    classes: int = 2
    source: bytes = b""
    value: float = 1.0
    spec: ModelSpec = field(default_factory=small_spec)
    tls: Path | None = None
    answer: Answer | None = None
    read_log: Callable[[str, int], list[str]] | None = None
    tasks: "asyncio.Queue[Task]" = field(default_factory=asyncio.Queue)
    cancelled: list[TaskId] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    hand: list[TaskId] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    attendance: Attendance = field(init=False)

    def states(self) -> list[fleet_pb2.AppState]:
        state = fleet_pb2.AppState(ref=self.app, error=self.error, examples=self.examples)
        state.task, state.classes, state.source = self.task, self.classes, self.source
        return [state]

    def in_hand(self) -> list[TaskId]:
        return self.hand

    def take(self, task: Task) -> None:
        self.hand.append(task.id)
        self.tasks.put_nowait(task)

    def cancel(self, task: TaskId, reason: str) -> None:
        self.cancelled.append(task)

    @asynccontextmanager
    async def attending(self) -> AsyncIterator["LightSite"]:
        """Stay connected and do tasks until the block ends."""
        identity = Identity(self.address, SiteName(self.name), self.role, self.tls)
        self.attendance = Attendance(identity, self.states, read_log=self.read_log)
        self.ready.clear()
        attend = asyncio.create_task(self.attendance.attend(self, lambda _: self.ready.set()))
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait(
                (attend, asyncio.create_task(self.ready.wait())), return_when="FIRST_COMPLETED"
            )
            if attend.done():
                attend.result()
            yield self
        finally:
            for running in (work, attend):
                running.cancel()
            await asyncio.gather(work, attend, return_exceptions=True)
            await self.attendance.connection.close()

    async def _work(self) -> None:
        while True:
            task = await self.tasks.get()
            with suppress(Stale):  # the job may have ended meanwhile
                await (self.answer or LightSite.do)(self, task)
            self.hand.remove(task.id)

    async def do(self, task: Task) -> None:
        """Do a task honestly: version 0 is zeros, an update adds `value` to every number."""
        match task.work:
            case Survey():
                report = fleet_pb2.TaskReport(site=self.name, task=task.id)
                report.profile.MergeFrom(fleet_pb2.Profile(n=self.examples, mean=[self.value], m2=[0.0]))
                await self.attendance.insist(lambda: self.attendance.stub.Report(report))
            case Init():
                await self.send(task, filled(self.spec, 0))
            case Probe():
                probed = fleet_pb2.TaskReport(site=self.name, task=task.id, probed=self.value)
                await self.attendance.insist(lambda: self.attendance.stub.Report(probed))
            case Train() as work:
                await self.send(
                    task,
                    {
                        n: a + np.asarray(self.value, a.dtype)
                        for n, a in (await self.fetch(work.model)).items()
                    },
                )
            case Evaluate():
                report = fleet_pb2.TaskReport(site=self.name, task=task.id)
                report.evaluation.MergeFrom(
                    fleet_pb2.Evaluation(n=4, loss_sum=2.0, classes=2, confusion=[2, 1, 0, 1])
                )
                await self.attendance.insist(lambda: self.attendance.stub.Report(report))

    async def fetch(self, key: Any) -> dict[str, np.ndarray]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            _, arrays = await Fetcher(self.attendance, pool).fetch(key)
        return arrays

    async def send(self, task: Task, arrays: dict[str, np.ndarray], **facts: Any) -> Receipt:
        """Submit an update."""
        manifest, payload = sealed(self.spec, arrays)
        said = UpdateFacts(
            **{"n_train": self.examples, "n_used": 10, "steps": 1, "epochs": 1, "seconds": 0} | facts
        )
        receipt = await hand_in(self.attendance, task.id, manifest, payload, said)
        self.receipts.append(receipt)
        return receipt


async def ended(runner: JobRunner) -> JobRunner:
    """Wait until a job has ended."""
    while not runner.machine.ended:
        await runner.next_change().wait()
    return runner


async def pace_checked(place: Place) -> None:
    """Wait until the gate has checked the pace of a transfer once more."""
    checked, working = asyncio.Event(), place.working

    def noticed() -> bool:
        checked.set()
        return working()

    place.working = noticed
    await asyncio.wait_for(checked.wait(), 5)
    place.working = working


def model_of(served: Served, runner: JobRunner) -> dict[str, np.ndarray]:
    """Return the arrays of a job's newest community model."""
    assert runner.machine.state.current is not None
    with served.federation.store.open(runner.machine.state.current) as model:
        payload = np.frombuffer(b"".join(model.read(i) for i in range(model.layout.frames)), np.uint8)
        return views(Layout(model.manifest.spec), payload)


def fleet_stub(address: str) -> tuple[grpc.aio.Channel, Stub]:
    """Return a bare connection to the Fleet service."""
    channel = grpc.aio.insecure_channel(address, options=CLIENT)
    return channel, Stub(channel, fleet_pb2.DESCRIPTOR.services_by_name["Fleet"])


def renew_checksums(db: sqlite3.Connection) -> None:
    """Make a change to a journal's file look as if it had been written that way."""
    for job, sequence, event in db.execute("select job, sequence, event from entries").fetchall():
        kept = checksum(job, sequence, event)
        db.execute("update entries set checksum = ? where job = ? and sequence = ?", (kept, job, sequence))
    for job, spec, at in db.execute("select id, spec, at from jobs").fetchall():
        db.execute("update jobs set checksum = ? where id = ?", (checksum_of(JobRecord(job, spec, at)), job))


async def nothing() -> AsyncIterator[bytes]:
    """Yield no frames, for a job without an initial model."""
    return
    yield


async def wait_for_ever(site: "LightSite", task: Task) -> None:
    """Do what a site does, but never finish training."""
    if isinstance(task.work, Train):
        await asyncio.Event().wait()
    await site.do(task)


def install(folder: Path, name: str, source: str) -> None:
    """Install a package of one file with an entry point for plugins."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hansa.plugins]\n{name} = {name}\n")
