"""The RPCs that sites call; they translate and delegate."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from hansa.common.plugins.check import ANYTHING
from hansa.common.process.clock import Clock
from hansa.common.rpc import codec
from hansa.common.rpc.guard import caller_of
from hansa.common.values.errors import (
    Broken,
    Forbidden,
    HansaError,
    InvalidInput,
    NotFound,
    Stale,
    StoreFailed,
    Unreachable,
    reason,
)
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId, job_of
from hansa.common.values.results import Evaluation, Failure, Profile
from hansa.common.values.tasks import Task
from hansa.common.values.wording.words import plain
from hansa.controller.api.enrolment import enrolled
from hansa.controller.api.limits import LARGEST_MODEL, require_size
from hansa.controller.api.messages import header_of, parsed
from hansa.controller.engine import events as ev
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.fleet.sessions import CancelTask, PulseDue, ReadLog, Session, role_of
from hansa.controller.jobs.directory import Jobs
from hansa.controller.transfers.downloads import Downloads
from hansa.controller.transfers.intake import Intake
from hansa.controller.transfers.sending import task_message
from hansa.protos import fleet_pb2 as wire

log = logging.getLogger(__name__)
LARGEST_COUNT = (1 << 63) - 1  # that fits into a message


class FleetServicer:
    """The service for sites."""

    def __init__(
        self,
        name: str,  # what the controller calls itself to sites
        jobs: Jobs,
        fleet: Fleet,
        intake: Intake,
        downloads: Downloads,
        clock: Clock,
        largest: int = LARGEST_MODEL,
        trained: Callable[[float], None] = lambda _: None,  # told how many seconds each update took
    ) -> None:
        self._name, self._jobs, self._fleet = name, jobs, fleet
        self._intake, self._downloads, self._clock = intake, downloads, clock
        self._largest, self._trained = largest, trained

    async def Attend(
        self, messages: AsyncIterator[wire.FromSite], context: Any
    ) -> AsyncIterator[wire.ToSite]:
        """Keep a daemon's session for as long as its stream lives."""
        first = await anext(aiter(messages), wire.FromSite())
        session = enrolled(first, context.peer(), self._clock.now())
        self._fleet.attend(session)
        goodbye, why = asyncio.create_task(self._listen(session, messages)), ""
        try:
            beat = self._fleet.heartbeat
            yield wire.ToSite(enrolled=wire.Enrolled(controller=self._name, heartbeat_seconds=beat))
            while (message := await session.outbox.get()) is not None:
                encoded = self._to_site(session, message)
                if encoded is not None:
                    yield encoded
            if goodbye.done():
                goodbye.result()  # raises if a message of the daemon was invalid
        except (asyncio.CancelledError, HansaError) as error:
            why = str(error)  # empty if the connection broke
            raise
        finally:
            listened = goodbye.done() and not goodbye.cancelled() and goodbye.exception() is None
            goodbye.cancel()
            self._fleet.broken(session, goodbye=listened and goodbye.result(), why=why)

    def _to_site(
        self, session: Session, message: Task | CancelTask | PulseDue | ReadLog
    ) -> wire.ToSite | None:
        if isinstance(message, PulseDue):
            steps = min(session.pulses.pop(message.job), LARGEST_COUNT)
            return wire.ToSite(pulse=wire.Pulse(job=message.job, steps=steps))
        if isinstance(message, ReadLog):
            asked = wire.ReadLog(request=message.request, lines=message.lines, operator=message.operator)
            return wire.ToSite(read_log=asked)
        if isinstance(message, CancelTask):
            return wire.ToSite(cancel=wire.Cancel(task=message.task, reason=plain(message.reason)))
        try:
            runner = self._jobs.runner(message.job)
        except Stale:  # the job ended so long ago that it is no longer in memory
            session.in_hand.discard(message.id)
            return None
        try:
            return task_message(message, runner.machine)
        except ANYTHING as error:  # a plugin's fault must end neither the site's session nor other jobs
            log.warning("job %s: task %s cannot be sent", message.job, message.id, exc_info=True)
            session.in_hand.discard(message.id)
            why = f"a task of site {message.site} cannot be sent: {reason(error)}"
            runner.post(ev.EngineFailed(at=self._clock.now(), reason=why))
            return None

    async def _listen(self, session: Session, messages: AsyncIterator[wire.FromSite]) -> bool:
        """Take a daemon's messages; return whether it said goodbye."""
        goodbye = False
        try:
            async for message in messages:
                session.last_seen = self._clock.now()
                match message.WhichOneof("kind"):
                    case "progress":
                        self._note_progress(session, message.progress)
                    case "log_lines":
                        shown = message.log_lines
                        session.show_log(shown.request, shown.lines, plain(shown.refusal))
                    case "goodbye":
                        goodbye = True
                        break
        except asyncio.CancelledError:
            pass
        finally:
            session.close()
        return goodbye

    def _note_progress(self, session: Session, message: wire.Progress) -> None:
        progress = parsed(codec.progress_from_wire, message, "invalid progress: ")
        if progress.task in session.in_hand:  # else the task is over, or was never this daemon's
            session.progress[progress.task] = progress
            with contextlib.suppress(NotFound, Stale):
                self._jobs.runner(job_of(progress.task)).changed()

    async def Fetch(self, request: wire.FetchRequest, context: Any) -> AsyncIterator[bytes]:
        """Send a model that one of the site's open tasks starts from."""
        site, key = SiteName(request.site), ModelKey(request.model)
        runner = self._jobs.runner(JobId(key.partition("/")[0]))
        if not any(key in task.models for task in runner.machine.tasks_of(site)):
            raise Stale(f"no open task of {site} needs model {key}")
        who = str(caller_of(context) or site)
        try:
            sending = self._downloads.send(
                key,
                set(request.held),
                who,
                request.start,
                request.continued,
                auxiliary=set(request.auxiliary),
            )
            async for message in sending:
                runner.traffic.down += len(message)
                yield message
        except StoreFailed as error:
            raise Unreachable(str(error)) from None  # this may pass: the site asks again
        except (NotFound, Broken) as error:
            runner.post(ev.EngineFailed(at=self._clock.now(), reason=f"a model was lost: {error}"))
            raise

    async def Offer(self, request: wire.OfferRequest, context: Any) -> wire.OfferReply:
        """Check an update's manifest and answer with the frame to start from."""
        site, task = SiteName(request.site), TaskId(request.task)
        await self._intake.require_wanted(site, task)
        stated = (await self._jobs.recall(job_of(task))).machine.stated("learner", site)
        try:
            facts = parsed(
                lambda message: codec.facts_from_wire(message, stated),
                request.facts,
                "the update's facts are invalid: ",
            )
        except InvalidInput as error:
            await self._intake.turn_down(site, task, str(error))
            raise
        manifest = codec.manifest_from_wire(request.manifest)
        require_size(manifest, self._largest)
        start, receipt = await self._intake.offer(site, task, manifest, facts)
        if not start and not receipt:
            self._trained(facts.seconds)
        return wire.OfferReply(start=start, receipt=codec.receipt_to_wire(receipt) if receipt else None)

    async def Upload(self, messages: AsyncIterator[bytes], context: Any) -> wire.Receipt:
        """Take the frames of an offered update."""
        stream = aiter(messages)
        header = header_of(wire.UploadHeader, await anext(stream, b""))
        site, task = SiteName(header.site), TaskId(header.task)
        receipt = await self._intake.receive(site, task, header.start, stream)
        return codec.receipt_to_wire(receipt)

    async def Report(self, request: wire.TaskReport, context: Any) -> wire.ReportReply:
        """Take an evaluation, a profile or a failure."""
        task, site = TaskId(request.task), SiteName(request.site)
        runner = self._jobs.runner(job_of(task))
        wanted, caller = role_of(runner.open_task(task, site)), caller_of(context)
        if caller and caller.role != wanted:
            raise Forbidden(f"{caller} may not report on a task of the site's {wanted}")
        now, stated = self._clock.now(), runner.machine.stated(wanted, site)
        try:
            outcome = parsed(lambda message: codec.outcome_from_wire(message, stated), request)
        except InvalidInput as error:
            why = f"invalid report: {error}"
            await runner.post(ev.TaskFailed(at=now, task=task, site=site, reason=why, final=False))
            raise
        await runner.post(_reported(outcome, task, site, now))
        return wire.ReportReply()


def _reported(
    outcome: Evaluation | Profile | float | Failure, task: TaskId, site: SiteName, now: float
) -> ev.Event:
    if isinstance(outcome, Evaluation):
        return ev.Reported(at=now, task=task, site=site, evaluation=outcome)
    if isinstance(outcome, Profile):
        return ev.Surveyed(at=now, task=task, site=site, profile=outcome)
    if isinstance(outcome, float):
        return ev.Probed(at=now, task=task, site=site, result=outcome)
    return ev.TaskFailed(at=now, task=task, site=site, **outcome.model_dump())
