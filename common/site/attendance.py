"""A daemon's session with the controller: one long-lived stream, opened again whenever it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

import grpc

from hansa import __version__
from hansa.common.rpc import codec, task_codec
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.errors import translate, translated
from hansa.common.rpc.methods import Stub
from hansa.common.site.connection import Connection, Identity
from hansa.common.values.bounds import MOST_NAMED
from hansa.common.values.errors import Forbidden, HansaError, Unoffered, Unproven, Unreachable, one_line
from hansa.common.values.ids import NAME, PROTOCOL, JobId, TaskId, new_instance
from hansa.common.values.results import Failure, Progress
from hansa.common.values.tasks import Task
from hansa.common.values.wording.words import plain
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)
T = TypeVar("T")

STEADY = 5.0  # seconds that a session must last for the next break to count as a new problem
PULSES = 64  # jobs whose progress is remembered
BEAT = (0.02, 60.0)  # seconds between heartbeats, whatever the controller asks for


class Worker(Protocol):
    """What a daemon does with tasks."""

    def in_hand(self) -> list[TaskId]:
        """Return the tasks that are running, queued or not yet acknowledged."""

    def take(self, task: Task) -> None:
        """Queue a task; a task that is in hand already is ignored."""

    def cancel(self, task: TaskId, reason: str) -> None:
        """Drop a task."""


class Attendance:
    """A daemon's place in the fleet."""

    def __init__(
        self,
        identity: Identity,
        apps: Callable[[], list[fleet.AppState]],
        instance: str = "",
        read_log: Callable[[str, int], list[str]] | None = None,  # who asks, how many lines
    ) -> None:
        self.identity = identity
        self.instance = instance or new_instance()
        self.connection = Connection(identity)
        self.refused = ""  # why the controller refuses us; empty if it does not, or does not answer
        self.heartbeat = 5.0  # seconds between two heartbeats
        self._apps, self._read_log = apps, read_log
        self._outbox: asyncio.Queue[fleet.FromSite] = asyncio.Queue()
        self._leaving = False
        self._outdated = False  # what was said at enrolment is no longer true
        self._renewed = False  # the session was ended in order to begin a new one
        self._enrolled = asyncio.Event()  # set by the next enrolment, and replaced
        self._pulses: dict[JobId, int] | None = None  # steps committed to jobs; None: no session

    @property
    def stub(self) -> Stub:
        """The controller's methods, on the connection in use."""
        return self.connection.stub

    def apart(self, size: int) -> AbstractAsyncContextManager[Stub]:
        """Lend a stub for moving `size` bytes; a large transfer gets its own connection."""
        return self.connection.apart(size)

    async def attend(self, worker: Worker, ready: Callable[[str], None]) -> None:
        """Keep a session open; log once when the controller cannot be reached, and once when it can again."""
        backoff, silent, known = Backoff(), False, False
        now = asyncio.get_running_loop().time
        while not self._leaving:
            self.connection.renew()
            self._renewed = False
            began: float | None = None
            try:
                async for message in self._session(worker):
                    if message.HasField("enrolled"):
                        self._enrol(message.enrolled, ready)
                        began, silent, known = now(), False, True
                    else:
                        self._handle(worker, message)
                problem, refused = "the controller ended the session", ""
            except grpc.aio.AioRpcError as error:
                ours = translate(error)
                # A certificate that was accepted before may be renewed.
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
                trouble = "refuses us" if refused else "is out of reach"
                log.warning("controller %s %s (%s); trying again", self.identity.controller, trouble, problem)
                ready(f"{self._name} is up; {self._attempts(problem)}")
            silent = True
            if began is not None and now() - began >= STEADY:
                backoff.reset()  # not after every session: something may end each one as soon as it begins
            await backoff.rest()
            self.connection.hurry = not backoff.patient
            self.connection.replace()

    @property
    def _name(self) -> str:
        return f"{self.identity.role} of {self.identity.site}"

    def _enrol(self, enrolled: fleet.Enrolled, ready: Callable[[str], None]) -> None:
        """The controller has accepted us."""
        self.heartbeat = max(BEAT[0], min(enrolled.heartbeat_seconds, BEAT[1]))
        # The stream's writer still waits for the old interval: wake it.
        self._outbox.put_nowait(fleet.FromSite(heartbeat=fleet.Heartbeat()))
        log.info("%s is connected to %s", self._name, self.identity.controller)
        self.refused = ""
        ready(f"{self._name} is connected to {self.identity.controller}")
        self._pulses = {}
        self._enrolled.set()  # calls that wait for the next try need not wait longer
        self._enrolled = asyncio.Event()

    def _handle(self, worker: Worker, message: fleet.ToSite) -> None:
        if message.HasField("task"):
            self._take(worker, message.task)
        elif message.HasField("cancel"):
            worker.cancel(TaskId(message.cancel.task), message.cancel.reason)
        elif message.HasField("pulse"):
            self._remember(JobId(message.pulse.job), message.pulse.steps)
        elif message.HasField("read_log"):
            self._show_log(message.read_log)

    def _show_log(self, asked: fleet.ReadLog) -> None:
        """Send the last lines of the log, or say why not."""
        answer = fleet.LogLines(request=asked.request, refusal="this daemon does not show its log")
        operator = plain(asked.operator, 64)
        if self._read_log is not None:
            try:
                answer = fleet.LogLines(request=asked.request, lines=self._read_log(operator, asked.lines))
            except Forbidden as error:
                answer.refusal = plain(str(error), 500)
        shown = f"refused: {answer.refusal}" if answer.refusal else f"{len(answer.lines)} lines sent"
        log.info("operator %s asked for the log: %s", operator or "unknown", shown)
        self._outbox.put_nowait(fleet.FromSite(log_lines=answer))

    def _attempts(self, problem: str) -> str:
        """Describe what a daemon without a session does."""
        if self.refused:
            return (
                f"the controller refuses it ({self.refused}); it keeps trying, because its certificate may be"
                " renewed"
            )
        where = self.identity.controller
        return f"it cannot reach the controller at {where} ({plain(problem)}) and keeps trying"

    def _take(self, worker: Worker, wire: fleet.Task) -> None:
        """Pass on a task; report one that this version cannot read as failed, and continue."""
        try:
            worker.take(task_codec.task_from_wire(wire))
        except (HansaError, ValueError, RecursionError) as error:
            why = f"Hansa {__version__} cannot read the task: {one_line(error)}"
            log.warning("task %s: %s", plain(wire.id), plain(why))
            self.connection.attach(self.report_failure(TaskId(wire.id), Failure(reason=why, final=True)))

    def _remember(self, job: JobId, steps: int) -> None:
        """Remember how far a job has come; only the latest jobs are of use."""
        if self._pulses is None or not NAME.fullmatch(job):
            return  # we are not enrolled yet, or it is not a job: a name may be as long as a message
        self._pulses.pop(job, None)
        self._pulses[job] = steps
        while len(self._pulses) > PULSES:
            self._pulses.pop(next(iter(self._pulses)))

    def pulse(self, job: JobId) -> int | None:
        """Return the optimizer steps that a job has committed, 0 if unknown; None if there is no session."""
        return None if self._pulses is None else self._pulses.get(job, 0)

    async def _session(self, worker: Worker) -> AsyncIterator[fleet.ToSite]:
        self._outbox = asyncio.Queue()
        self._outdated = False
        enrol = fleet.Enrol(
            protocol=PROTOCOL,
            version=__version__,
            site=self.identity.site,
            role=fleet.LEARNER if self.identity.role == "learner" else fleet.EVALUATOR,
            instance=self.instance,
            apps=self._apps(),
            # Tasks that are left out are sent again, and ignored because they are in hand.
            tasks=worker.in_hand()[:MOST_NAMED],
        )
        call = self.stub.Attend(self._outgoing(enrol))
        try:
            async for message in call:
                yield message
        finally:
            call.cancel()

    async def _outgoing(self, enrol: fleet.Enrol) -> AsyncIterator[fleet.FromSite]:
        outbox = self._outbox
        yield fleet.FromSite(enrol=enrol)
        while True:
            if self.connection.renew() or self._outdated:
                self._renewed = True
                return  # the session ends and begins again, with the new certificate or other apps
            try:
                message = await asyncio.wait_for(outbox.get(), self.heartbeat)
            except TimeoutError:
                message = fleet.FromSite(heartbeat=fleet.Heartbeat())
            yield message
            if message.HasField("goodbye"):
                return

    def enrol_again(self) -> None:
        """Tell the controller anew which apps can be used: the session ends and begins again."""
        self._outdated = True
        # Wake the stream's writer.
        self._outbox.put_nowait(fleet.FromSite(heartbeat=fleet.Heartbeat()))

    def report_progress(self, progress: Progress) -> None:
        """Send a progress note at the next opportunity; it may be lost."""
        self._outbox.put_nowait(fleet.FromSite(progress=codec.progress_to_wire(progress)))

    async def leave(self) -> None:
        """Say goodbye and hang up."""
        self._leaving = True
        self._outbox.put_nowait(fleet.FromSite(goodbye=fleet.Goodbye()))
        # The stream's writer needs a moment; a lost goodbye only costs the grace period.
        await asyncio.sleep(0.2)
        await self.connection.close()

    async def insist(self, call: Callable[[], Awaitable[T]], progress: Callable[[], int] = lambda: 0) -> T:
        """Repeat a call while the controller is out of reach; other errors are raised.

        Pauses between tries are short again after a try that made `progress`.
        """
        backoff, reached = Backoff(), progress()
        while True:
            try:
                with translated():
                    return await call()
            # `attend` finds out whether a refusal is permanent; a call that offers an update offers it again.
            except (Unreachable, Unproven, Unoffered):
                if progress() > reached:
                    backoff.reset()
                reached = progress()
                await backoff.rest(self._enrolled)

    async def report_failure(self, task: TaskId, failure: Failure) -> None:
        """Tell the controller that a task cannot be done."""
        wire = fleet.Failure(reason=plain(failure.reason), final=failure.final, unfit=failure.unfit)
        request = fleet.TaskReport(site=self.identity.site, task=task, failure=wire)
        try:
            await self.insist(lambda: self.stub.Report(request))
        except HansaError as error:
            log.info("task %s: failure report ignored: %s", task, error)
