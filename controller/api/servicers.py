"""The controller's RPCs: they translate and delegate."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic import ValidationError

from hansa import __version__
from hansa.common.job.check import located, parse_job, problems
from hansa.common.plugins.check import ANYTHING
from hansa.common.rpc import codec
from hansa.common.rpc.decoding import Decoder
from hansa.common.rpc.guard import caller_of
from hansa.common.values.bounds import MOST_NAMED, TEXT
from hansa.common.values.errors import (
    Broken,
    Forbidden,
    HansaError,
    InvalidInput,
    InvalidJob,
    NotFound,
    Refused,
    Stale,
    StoreFailed,
    TooLarge,
    Unreachable,
    reason,
)
from hansa.common.values.ids import (
    NAME,
    PROTOCOL,
    JobId,
    ModelKey,
    SiteName,
    TaskId,
    community_key,
    identifier,
    job_of,
    site_name,
)
from hansa.common.values.results import Evaluation, Profile
from hansa.common.values.tasks import Task
from hansa.common.values.views import StatusView
from hansa.common.values.words import plain
from hansa.controller.api.limits import LARGEST_MODEL, SubmissionRate, require_size
from hansa.controller.engine import events as ev
from hansa.controller.jobs.federation import Federation
from hansa.controller.jobs.fleet import AppState, CancelTask, DaemonRole, PulseDue, Session
from hansa.controller.jobs.runner import role_of
from hansa.controller.transfers.sending import task_message
from hansa.protos import fleet_pb2 as fleet
from hansa.protos import operator_pb2 as operator

log = logging.getLogger(__name__)
ROLES: dict[int, DaemonRole] = {fleet.LEARNER: "learner", fleet.EVALUATOR: "evaluator"}
LARGEST_JOB = 1 << 20  # characters
SHOWN = 3  # faults of a message that makes no sense
MOST_EXAMPLES = 1 << 53  # of a site: doubles count no further
LARGEST_COUNT = (1 << 63) - 1  # that a message carries
WATCH_PAUSE = 0.1  # seconds between two views of a watched job


class FleetServicer:
    """What sites call."""

    def __init__(
        self,
        federation: Federation,
        name: str,
        largest: int = LARGEST_MODEL,
        trained: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._federation = federation
        self._name = name
        self._trained = trained  # told how many seconds each update took
        self._largest = largest

    async def Attend(
        self, messages: AsyncIterator[fleet.FromSite], context: Any
    ) -> AsyncIterator[fleet.ToSite]:
        """Keep a daemon's session for as long as its stream lives."""
        session = self._enrol(await anext(aiter(messages), fleet.FromSite()), context)
        self._federation.fleet.attend(session)
        goodbye, why = asyncio.create_task(self._listen(session, messages)), ""
        try:
            beat = self._federation.fleet.heartbeat
            yield fleet.ToSite(enrolled=fleet.Enrolled(controller=self._name, heartbeat_seconds=beat))
            while (message := await session.outbox.get()) is not None:
                told = self._to_site(session, message)
                if told is not None:
                    yield told
            if goodbye.done():
                goodbye.result()  # raises if what the daemon said made no sense
        except (asyncio.CancelledError, HansaError) as error:
            why = str(error)  # empty if the connection broke
            raise
        finally:
            said = (
                goodbye.done()
                and not goodbye.cancelled()
                and goodbye.exception() is None
                and goodbye.result()
            )
            goodbye.cancel()
            self._federation.fleet.broken(session, goodbye=said, why=why)

    def _to_site(self, session: Session, message: Task | CancelTask | PulseDue) -> fleet.ToSite | None:
        if isinstance(message, PulseDue):
            steps = min(session.pulses.pop(message.job), LARGEST_COUNT)
            return fleet.ToSite(pulse=fleet.Pulse(job=message.job, steps=steps))
        if isinstance(message, CancelTask):
            return fleet.ToSite(cancel=fleet.Cancel(task=message.task, reason=plain(message.reason)))
        runner = self._federation.runner(message.job)
        try:
            return task_message(message, runner.machine)
        except (
            ANYTHING
        ) as error:  # a plugin's doing: it must not cost the site its session, and other jobs the site
            log.warning("job %s: task %s cannot be sent", message.job, message.id, exc_info=True)
            session.in_hand.discard(message.id)
            why = f"a task of site {message.site} cannot be sent: {reason(error)}"
            runner.post(ev.EngineFailed(at=self._federation.clock.now(), reason=why))
            return None

    def _enrol(self, first: fleet.FromSite, context: Any) -> Session:
        if first.WhichOneof("kind") != "enrol":
            raise InvalidInput("the first message must enrol")
        enrol = first.enrol
        if enrol.protocol != PROTOCOL:
            raise Refused(
                f"{plain(enrol.site, 64)} speaks protocol {enrol.protocol} (Hansa {plain(enrol.version, 40)}), this"
                f" controller speaks protocol {PROTOCOL} (Hansa {__version__}): update the older one"
            )
        if enrol.role not in ROLES:
            raise InvalidInput("a daemon enrols as learner or evaluator")
        if max(len(enrol.apps), len(enrol.tasks)) > MOST_NAMED:
            raise TooLarge(f"a daemon can name at most {MOST_NAMED} apps and {MOST_NAMED} tasks in hand")
        if max(map(len, (enrol.instance, *enrol.tasks, *(app.ref for app in enrol.apps)))) > TEXT:
            raise TooLarge(f"instance, apps and tasks in hand are named with at most {TEXT} characters each")
        for app in enrol.apps:
            if app.examples >= MOST_EXAMPLES:
                raise InvalidInput(
                    f"{plain(app.ref, 200)}: {app.examples} examples; at most 2^53 can be counted"
                )
        now = self._federation.clock.now()
        return Session(
            site=site_name(enrol.site),
            role=ROLES[enrol.role],
            instance=identifier(enrol.instance, "process"),
            apps={plain(app.ref): _app_state(app) for app in enrol.apps},
            in_hand={TaskId(identifier(task, "task")) for task in enrol.tasks},
            since=now,
            last_seen=now,
            version=plain(enrol.version, 40),
            peer=context.peer(),
        )

    async def _listen(self, session: Session, messages: AsyncIterator[fleet.FromSite]) -> bool:
        """Hear a daemon out; return whether it said goodbye."""
        goodbye = False
        try:
            async for message in messages:
                session.last_seen = self._federation.clock.now()
                match message.WhichOneof("kind"):
                    case "progress":
                        note = _parsed(
                            codec.progress_from_wire, message.progress, "the progress makes no sense: "
                        )
                        if note.task not in session.in_hand:
                            continue  # it is over, or was never this daemon's
                        session.progress[note.task] = note
                        with contextlib.suppress(NotFound):
                            self._federation.runner(job_of(note.task)).changed()
                    case "goodbye":
                        goodbye = True
                        break
        except asyncio.CancelledError:
            pass
        finally:
            session.close()
        return goodbye

    async def Fetch(self, request: fleet.FetchRequest, context: Any) -> AsyncIterator[bytes]:
        """Send a model that one of the site's open tasks starts from."""
        site, key = SiteName(request.site), ModelKey(request.model)
        runner = self._federation.runner(JobId(key.partition("/")[0]))
        if not any(key in task.models for task in runner.machine.tasks_of(site)):
            raise Stale(f"no open task of {site} needs model {key}")
        who = str(caller_of(context) or site)
        try:
            sending = self._federation.downloads.send(
                key, set(request.held), who, request.start, request.continued
            )
            async for message in sending:
                runner.traffic.down += len(message)
                yield message
        except StoreFailed as error:
            raise Unreachable(str(error)) from None  # it may pass: the site asks again
        except (NotFound, Broken) as error:
            runner.post(ev.EngineFailed(at=self._federation.clock.now(), reason=f"a model was lost: {error}"))
            raise

    async def Offer(self, request: fleet.OfferRequest, context: Any) -> fleet.OfferReply:
        """Check an update's manifest and say where to start."""
        site, task = SiteName(request.site), TaskId(request.task)
        await self._federation.intake.require_wanted(site, task)
        stated = (await self._federation.recall(job_of(task))).machine.stated("learner", site)
        try:
            facts = _parsed(
                lambda wire: codec.facts_from_wire(wire, stated),
                request.facts,
                "the update's facts make no sense: ",
            )
        except InvalidInput as error:
            await self._federation.intake.turn_down(site, task, str(error))
            raise
        manifest = codec.manifest_from_wire(request.manifest)
        require_size(manifest, self._largest)
        start, receipt = await self._federation.intake.offer(site, task, manifest, facts)
        if not start and not receipt:
            self._trained(facts.seconds)
        return fleet.OfferReply(start=start, receipt=codec.receipt_to_wire(receipt) if receipt else None)

    async def Upload(self, messages: AsyncIterator[bytes], context: Any) -> fleet.Receipt:
        """Take the frames of an offered update."""
        stream = aiter(messages)
        header = _decoded(fleet.UploadHeader, await anext(stream, b""))
        site, task = SiteName(header.site), TaskId(header.task)
        receipt = await self._federation.intake.receive(site, task, header.start, stream)
        return codec.receipt_to_wire(receipt)

    async def Report(self, request: fleet.TaskReport, context: Any) -> fleet.ReportReply:
        """Take an evaluation, a profile or a failure."""
        task, site = TaskId(request.task), SiteName(request.site)
        runner = self._federation.runner(job_of(task))
        wanted, caller = role_of(runner.open_task(task, site)), caller_of(context)
        if caller and caller.role != wanted:
            raise Forbidden(f"{caller} cannot answer a task of the site's {wanted}")
        now, stated = self._federation.clock.now(), runner.machine.stated(wanted, site)
        event: ev.Event
        try:
            outcome = _parsed(lambda wire: codec.outcome_from_wire(wire, stated), request)
        except InvalidInput as error:
            event = ev.TaskFailed(
                at=now, task=task, site=site, reason=f"nonsense reported: {error}", final=False
            )
            await runner.post(event)
            raise
        if isinstance(outcome, Evaluation):
            event = ev.Reported(at=now, task=task, site=site, evaluation=outcome)
        elif isinstance(outcome, Profile):
            event = ev.Surveyed(at=now, task=task, site=site, profile=outcome)
        elif isinstance(outcome, float):
            event = ev.Probed(at=now, task=task, site=site, importance=outcome)
        else:
            event = ev.TaskFailed(at=now, task=task, site=site, reason=outcome.reason, final=outcome.final)
        await runner.post(event)
        return fleet.ReportReply()


class OperatorServicer:
    """What operators call."""

    def __init__(self, federation: Federation, status: StatusView, largest: int = LARGEST_MODEL) -> None:
        self._federation = federation
        self._status = status
        self._largest = largest
        self._rate = SubmissionRate(federation.clock)

    async def Submit(self, messages: AsyncIterator[bytes], context: Any) -> operator.JobReply:
        """Validate and start a job."""
        stream = aiter(messages)
        header = _decoded(operator.SubmitHeader, await anext(stream, b""))
        name, who = _operator(context, header.operator)
        self._rate.take(name)
        spec = parse_job(_document(header.job_json)).model_copy(update={"operator": name})
        manifest = codec.manifest_from_wire(header.manifest) if header.HasField("manifest") else None
        reference = codec.manifest_from_wire(header.reference) if header.HasField("reference") else None
        for brought in filter(None, (manifest, reference)):
            require_size(brought, self._largest)
        runner = await self._federation.submit(spec, manifest, stream, who, reference)
        return operator.JobReply(view_json=runner.whole_view().model_dump_json())

    async def Show(self, request: operator.JobRequest, context: Any) -> operator.JobReply:
        """Show one job."""
        runner = await self._federation.find(request.job)
        return operator.JobReply(view_json=runner.whole_view().model_dump_json())

    async def List(self, request: operator.ListRequest, context: Any) -> operator.ListReply:
        """List all jobs."""
        return operator.ListReply(views_json=[view.model_dump_json() for view in self._federation.views()])

    async def Watch(self, request: operator.JobRequest, context: Any) -> AsyncIterator[operator.JobReply]:
        """Send a job's view after every change until it has ended."""
        runner = await self._federation.find(request.job)
        since = 0
        while not runner.machine.ended:
            change = runner.next_change()
            view = runner.view(since=since)
            yield operator.JobReply(view_json=view.model_dump_json())
            since = max((entry.version for entry in view.history if entry.evaluated), default=since)
            await change.wait()
            await asyncio.sleep(WATCH_PAUSE)
        yield operator.JobReply(view_json=runner.view(since=since).model_dump_json())

    async def Cancel(self, request: operator.JobRequest, context: Any) -> operator.JobReply:
        """End a job."""
        runner = await self._federation.find(request.job)
        if runner.machine.ended:
            raise Refused(f"job {runner.id} has ended already: {runner.machine.state.status}")
        name, who = _operator(context)
        await self._federation.audit.record(who, "cancelled", runner.id)
        await runner.post(ev.CancelAsked(at=self._federation.clock.now(), operator=name))
        return operator.JobReply(view_json=runner.view().model_dump_json())

    async def Model(self, request: operator.ModelRequest, context: Any) -> AsyncIterator[bytes]:
        """Send a community model."""
        runner = await self._federation.find(request.job)
        state = runner.machine.state
        if state.current is None:
            raise NotFound(f"job {runner.id} has no model yet")
        wanted = request.version if request.HasField("version") else state.version
        key = state.current if wanted == state.version else community_key(runner.id, wanted)
        if key not in state.models:
            raise NotFound(f"version {wanted} of job {runner.id} is not kept; the newest is {state.version}")
        who, origin = _operator(context)[1], runner.origin(wanted).model_dump_json()
        sending = self._federation.downloads.send(key, set(), who, request.start, request.continued, origin)
        async for message in sending:
            yield message

    async def Sites(self, request: operator.SitesRequest, context: Any) -> operator.SitesReply:
        """List the fleet."""
        return operator.SitesReply(
            views_json=[view.model_dump_json() for view in self._federation.fleet.views()]
        )

    async def Status(self, request: operator.StatusRequest, context: Any) -> operator.StatusReply:
        """Say how the controller is."""
        counts = dict(self._federation.statuses())
        sites = len({session.site for session in self._federation.fleet.sessions})
        view = self._status.model_copy(
            update={"jobs": counts, "sites": sites, "peak_memory_mib": peak_memory()}
        )
        return operator.StatusReply(view_json=view.model_dump_json())


def peak_memory() -> float:
    """Return the most memory this process ever had, in MiB."""
    import resource

    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _app_state(wire: fleet.AppState) -> AppState:
    stated = _parsed(codec.stated_from_wire, wire, f"app {plain(wire.ref)}: ")
    return AppState(plain(wire.error), wire.examples, stated)


def _decoded(kind: Any, message: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return Decoder(kind.DESCRIPTOR)(message)
    except DecodeError:
        raise InvalidInput(f"the stream does not begin with a {kind.DESCRIPTOR.name}") from None


def _parsed(parse: Any, wire: Any, what: str = "") -> Any:
    """Decode a message; say in a line what in it makes no sense."""
    try:
        return parse(wire)
    except ValueError as error:
        faults = (
            [located(fault, {}) for fault in problems(error)[:SHOWN]]
            if isinstance(error, ValidationError)
            else []
        )
        raise InvalidInput(what + plain("; ".join(faults) or str(error))) from None


def _document(text: str) -> object:
    import json

    if len(text) > LARGEST_JOB:
        raise TooLarge(f"a job of {len(text)} characters; at most {LARGEST_JOB} are allowed")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidJob("the job is not a JSON document") from None


def _operator(context: Any, said: str = "") -> tuple[str, str]:
    """Return the operator's name and how the audit log calls them; what a message says counts only without TLS."""
    caller = caller_of(context)
    if caller:
        return caller.name, str(caller)
    name = said if NAME.fullmatch(said) else ""
    return name, f"operator {name or 'unnamed'} (not proven)"
