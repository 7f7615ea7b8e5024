"""Attending: one long-lived stream to the controller, opened again whenever it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc

from hansa import __version__
from hansa.common.rpc import codec
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import connect, is_loopback
from hansa.common.rpc.errors import translate, translated
from hansa.common.rpc.methods import Stub
from hansa.common.values.bounds import MOST_NAMED
from hansa.common.values.errors import HansaError, Unoffered, Unproven, Unreachable, one_line
from hansa.common.values.ids import NAME, PROTOCOL, JobId, SiteName, TaskId, new_instance
from hansa.common.values.results import Progress
from hansa.common.values.tasks import Task
from hansa.common.values.words import plain
from hansa.protos import fleet_pb2 as fleet

if TYPE_CHECKING:
    from hansa.common.rpc.tls import TlsFolder

log = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds that a session must last before a later break is a new trouble, and not the old one again.
STEADY = 5.0
APART = 8 << 20  # bytes from which a transfer has a connection of its own
FLEET = fleet.DESCRIPTOR.services_by_name["Fleet"]
PULSES = 64  # jobs whose progress is remembered
BEAT = (0.02, 60.0)  # seconds between heartbeats, whatever the controller asks for
FAREWELL = 3600.0  # seconds that transfers on an old connection may take after a renewal


class Worker(Protocol):
    """The daemon's own part: what it does with tasks."""

    def in_hand(self) -> list[TaskId]:
        """Return the tasks that are running, queued or not yet acknowledged."""

    def take(self, task: Task) -> None:
        """Queue a task; a task that is in hand already is ignored."""

    def cancel(self, task: TaskId, reason: str) -> None:
        """Drop a task."""


@dataclass(frozen=True)
class Identity:
    """Who a daemon is."""

    controller: str
    site: SiteName
    role: str  # learner or evaluator
    tls: Path | None = None  # folder with the certificate


class Attendance:
    """A daemon's place in the fleet."""

    def __init__(self, identity: Identity, apps: Callable[[], list[fleet.AppState]]) -> None:
        self.identity = identity
        self._tls = _tls_of(identity)
        self._chores: set[asyncio.Task[None]] = set()  # farewells to old connections, failures to report
        self._renewed = False
        self._hurry = True  # connections to a silent host are soon given up; not after many failures
        self._connect()
        self._apps = apps
        self._instance = new_instance()
        self._outbox: asyncio.Queue[fleet.FromSite] = asyncio.Queue()
        self._heartbeat = 5.0
        self._leaving = False
        self._again = False  # what was said at enrolment is no longer true
        self._enrolled = asyncio.Event()  # set with the next enrolment, and replaced
        self.refused = ""  # why the controller does not let us in; empty if it does, or does not answer
        self._pulses: dict[JobId, int] | None = None  # steps committed to jobs, as heard; none: out of reach

    def _connect(self) -> None:
        self.channel = self._channel()
        self.stub = Stub(self.channel, FLEET)

    def _connect_again(self) -> None:
        """Take a new channel into use; what is under way on the old one may finish.

        A channel that reached nobody is replaced, too: gRPC's own pauses grow from failure to failure, to
        minutes if the controller's name could not be looked up, and nobody can shorten them.
        """
        farewell = asyncio.create_task(self.channel.close(FAREWELL))
        self._chores.add(farewell)
        farewell.add_done_callback(self._chores.discard)
        self._connect()

    def _channel(self, alone: bool = False) -> grpc.aio.Channel:
        credentials = self._tls.credentials if self._tls else None
        return connect(self.identity.controller, credentials=credentials, alone=alone, hurry=self._hurry)

    @asynccontextmanager
    async def apart(self, size: int) -> AsyncIterator[Stub]:
        """Lend a stub for moving so many bytes: if they are many, on a connection of its own that is closed after.

        A connection that has moved a large model keeps some of the controller's memory until it is closed,
        and the heartbeats would stand behind the model's frames.
        """
        if size < APART:
            yield self.stub
            return
        channel = self._channel(alone=True)
        try:
            yield Stub(channel, FLEET)
        finally:
            await channel.close()

    def _renew(self) -> bool:
        """Take a new certificate into use, if there is one; what is under way on the old connection may finish."""
        if self._tls is None or not self._tls.refresh():
            return False
        self._connect_again()
        return True

    async def attend(self, worker: Worker, ready: Callable[[str], None]) -> None:
        """Attend for ever; say once when the controller cannot be reached, and once when it can again."""
        backoff, silent, known = Backoff(), False, False
        now = asyncio.get_running_loop().time
        while not self._leaving:
            self._renew()
            self._renewed = False
            began: float | None = None
            try:
                async for message in self._session(worker):
                    if message.HasField("enrolled"):
                        self._heartbeat = max(BEAT[0], min(message.enrolled.heartbeat_seconds, BEAT[1]))
                        # The stream's writer waits for as long as it believed right before it was told.
                        self._outbox.put_nowait(fleet.FromSite(heartbeat=fleet.Heartbeat()))
                        log.info("attending %s as %s of %s", *self._who())
                        began = now()
                        silent, known, self.refused = False, True, ""
                        ready(
                            f"{self.identity.role} of {self.identity.site} attends {self.identity.controller}"
                        )
                        self._pulses = {}
                        self._enrolled.set()  # whoever waits to make a call again need not wait longer
                        self._enrolled = asyncio.Event()
                    elif message.HasField("task"):
                        self._take(worker, message.task)
                    elif message.HasField("cancel"):
                        worker.cancel(TaskId(message.cancel.task), message.cancel.reason)
                    elif message.HasField("pulse"):
                        self._hear(JobId(message.pulse.job), message.pulse.steps)
                problem, refused = "the controller ended the session", ""
            except grpc.aio.AioRpcError as error:
                ours = translate(error)
                # A renewal may come.
                passing = isinstance(ours, Unreachable) or (known and isinstance(ours, Unproven))
                if not passing and error.code() is not grpc.StatusCode.INTERNAL:
                    raise ours from None  # the name is taken, the protocol differs: trying again cannot help
                problem = error.details() or error.code().name
                refused = plain(problem) if isinstance(ours, Unproven) else ""
            self._pulses = None
            if self._leaving:
                return
            if self._renewed:
                continue
            if not silent or refused != self.refused:
                self.refused = refused
                log.warning(
                    "controller %s %s (%s); trying again",
                    self.identity.controller,
                    _trouble(refused),
                    problem,
                )
                ready(f"{self.identity.role} of {self.identity.site} is up; {self._tries(problem)}")
            silent = True
            if began is not None and now() - began >= STEADY:
                backoff.reset()  # not with every session: something may end each of them as soon as it has begun
            await backoff.rest()
            self._hurry = not backoff.patient
            self._connect_again()

    def _tries(self, problem: str) -> str:
        """Say what a daemon without a session does."""
        if self.refused:
            return f"the controller refuses it ({self.refused}); it keeps trying, for its certificate may be renewed"
        return f"it cannot reach the controller at {self.identity.controller} ({plain(problem)}) and keeps trying"

    def _take(self, worker: Worker, wire: fleet.Task) -> None:
        """Hand a task on; one that this version cannot read is reported as failed, and the daemon goes on."""
        try:
            worker.take(codec.task_from_wire(wire))
        except (HansaError, ValueError, RecursionError) as error:
            why = f"Hansa {__version__} cannot read the task: {one_line(error)}"
            log.warning("task %s: %s", plain(wire.id), plain(why))
            report = asyncio.create_task(self.report_failure(TaskId(wire.id), why, final=True))
            self._chores.add(report)
            report.add_done_callback(self._chores.discard)

    def _hear(self, job: JobId, steps: int) -> None:
        """Remember how far a job has come; of many jobs only the latest are of use."""
        if self._pulses is None or not NAME.fullmatch(job):
            return  # before it has enrolled us, or of no job: a name may be as long as a message
        self._pulses.pop(job, None)
        self._pulses[job] = steps
        while len(self._pulses) > PULSES:
            self._pulses.pop(next(iter(self._pulses)))

    def pulse(self, job: JobId) -> int | None:
        """Return how many optimizer steps a job is known to have committed, 0 if it did not say; None: out of reach."""
        heard = self._pulses
        return None if heard is None else heard.get(job, 0)

    async def _session(self, worker: Worker) -> AsyncIterator[fleet.ToSite]:
        self._outbox = asyncio.Queue()
        self._again = False
        enrol = fleet.Enrol(
            protocol=PROTOCOL,
            version=__version__,
            site=self.identity.site,
            role=fleet.LEARNER if self.identity.role == "learner" else fleet.EVALUATOR,
            instance=self._instance,
            apps=self._apps(),
            tasks=worker.in_hand()[:MOST_NAMED],  # those left out come again, and are in hand
        )
        call = self.stub.Attend(self._speak(enrol))
        try:
            async for message in call:
                yield message
        finally:
            call.cancel()

    async def _speak(self, enrol: fleet.Enrol) -> AsyncIterator[fleet.FromSite]:
        outbox = self._outbox
        yield fleet.FromSite(enrol=enrol)
        while True:
            if self._renew() or self._again:
                self._renewed = True
                return  # the session ends and begins again, with the new certificate or other apps
            try:
                message = await asyncio.wait_for(outbox.get(), self._heartbeat)
            except TimeoutError:
                message = fleet.FromSite(heartbeat=fleet.Heartbeat())
            yield message
            if message.HasField("goodbye"):
                return

    def _who(self) -> tuple[str, str, str]:
        return self.identity.controller, self.identity.role, self.identity.site

    def enrol_again(self) -> None:
        """Tell the controller anew which apps can be used: the session ends and begins again."""
        self._again = True
        # Wakes whoever writes the stream.
        self._outbox.put_nowait(fleet.FromSite(heartbeat=fleet.Heartbeat()))

    def report_progress(self, progress: Progress) -> None:
        """Send a progress note with the next opportunity; it may be lost."""
        self._outbox.put_nowait(fleet.FromSite(progress=codec.progress_to_wire(progress)))

    async def leave(self) -> None:
        """Say goodbye and hang up."""
        self._leaving = True
        self._outbox.put_nowait(fleet.FromSite(goodbye=fleet.Goodbye()))
        # The stream's writer needs a moment; a lost goodbye only costs the grace period.
        await asyncio.sleep(0.2)
        for chore in self._chores:
            chore.cancel()
        await self.channel.close()

    async def insist(self, call: Callable[[], Awaitable[T]], progress: Callable[[], int] = lambda: 0) -> T:
        """Make a call again and again while the controller is out of reach; other errors are raised.

        Pauses between the tries are short again after a try that made `progress`.
        """
        backoff, reached = Backoff(), progress()
        while True:
            try:
                with translated():
                    return await call()
            # The attendance finds out whether it is for ever; a call that offers an update does so again.
            except (Unreachable, Unproven, Unoffered):
                if progress() > reached:
                    backoff.reset()
                reached = progress()
                await backoff.rest(self._enrolled)

    async def report_failure(self, task: TaskId, reason: str, final: bool) -> None:
        """Tell the controller that a task cannot be done."""
        request = fleet.TaskReport(site=self.identity.site, task=task)
        request.failure.reason, request.failure.final = plain(reason), final
        try:
            await self.insist(lambda: self.stub.Report(request))
        except HansaError as error:
            log.info("task %s: nobody waits for its failure: %s", task, error)


def _trouble(refused: str) -> str:
    return "refuses us" if refused else "is out of reach"


def _tls_of(identity: Identity) -> "TlsFolder | None":
    if identity.tls is None:
        if not is_loopback(identity.controller):
            log.warning(
                "the connection to %s is not encrypted, and nobody's name is proven", identity.controller
            )
        return None
    from hansa.common.rpc.tls import TlsFolder

    return TlsFolder(identity.tls, (identity.role,), identity.site)
