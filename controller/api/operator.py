"""The RPCs that operators call; they translate and delegate."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from typing import Any

from hansa.common.job.check import parse_job
from hansa.common.process.clock import Clock
from hansa.common.rpc import codec
from hansa.common.rpc.guard import caller_of
from hansa.common.values.errors import InvalidInput, InvalidJob, Refused, TooLarge
from hansa.common.values.ids import NAME, submission_key
from hansa.common.values.views import StatusView
from hansa.controller.api.limits import LARGEST_MODEL, SubmissionRate, require_size
from hansa.controller.api.messages import header_of
from hansa.controller.audit.log import Audit
from hansa.controller.engine import events as ev
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.jobs.admission import Admission
from hansa.controller.jobs.deletion import Deletion
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.telling import WATCH_PAUSE, Watcher, chapters
from hansa.controller.jobs.views import event_view, model_of
from hansa.controller.transfers.downloads import Downloads
from hansa.protos import operator_pb2 as wire

LARGEST_JOB = 1 << 20  # characters
PAGE = 500  # events in a message


class OperatorServicer:
    """The service for operators."""

    def __init__(
        self,
        status: StatusView,  # what does not change while the controller runs
        jobs: Jobs,
        fleet: Fleet,
        admission: Admission,
        deletion: Deletion,
        downloads: Downloads,
        audit: Audit,
        clock: Clock,
        rate: SubmissionRate,
        largest: int = LARGEST_MODEL,
    ) -> None:
        self._status, self._jobs, self._fleet = status, jobs, fleet
        self._admission, self._deletion = admission, deletion
        self._downloads, self._audit = downloads, audit
        self._clock, self._rate, self._largest = clock, rate, largest

    async def Submit(self, messages: AsyncIterator[bytes], context: Any) -> wire.JobReply:
        """Validate and start a job."""
        stream = aiter(messages)
        header = header_of(wire.SubmitHeader, await anext(stream, b""))
        name, who = _operator(context, header.operator)
        self._rate.take(name)
        whose = {"operator": name, "key": submission_key(header.key)}
        spec = parse_job(_document(header.job_json)).model_copy(update=whose)
        manifest = codec.manifest_from_wire(header.manifest) if header.HasField("manifest") else None
        reference = codec.manifest_from_wire(header.reference) if header.HasField("reference") else None
        for model in filter(None, (manifest, reference)):
            require_size(model, self._largest)
        runner = await self._admission.submit(spec, manifest, stream, who, reference)
        return wire.JobReply(view_json=runner.whole_view().model_dump_json())

    async def Show(self, request: wire.JobRequest, context: Any) -> wire.JobReply:
        """Show one job."""
        runner = await self._jobs.find(request.job)
        return wire.JobReply(view_json=runner.whole_view().model_dump_json())

    async def List(self, request: wire.ListRequest, context: Any) -> wire.ListReply:
        """List all jobs."""
        return wire.ListReply(views_json=[view.model_dump_json() for view in self._jobs.views()])

    async def History(self, request: wire.HistoryRequest, context: Any) -> AsyncIterator[wire.HistoryReply]:
        """Send the versions of a job."""
        runner = await self._jobs.find(request.job)
        async for texts in chapters(runner, _first(request), request.limit, request.detail):
            yield wire.HistoryReply(versions_json=texts)

    async def Watch(self, request: wire.WatchRequest, context: Any) -> AsyncIterator[wire.JobReply]:
        """Send a job's view after every change until it has ended."""
        runner = await self._jobs.find(request.job)
        async for view in Watcher(runner, _first(request), request.detail).views():
            yield wire.JobReply(view_json=view.model_dump_json())

    async def Events(self, request: wire.EventsRequest, context: Any) -> AsyncIterator[wire.EventsReply]:
        """Tell what happened in a job after an event, and with `follow` what happens until it ends."""
        runner, sent = await self._jobs.find(request.job), request.after
        while True:
            change, silent = runner.next_change(), runner.silent
            entries = runner.chronicle(sent, PAGE)
            sent += len(entries)
            # The first reply may be empty: it says that the stream is open.
            yield wire.EventsReply(events_json=[event_view(e).model_dump_json() for e in entries])
            if len(entries) < PAGE:
                if silent or not request.follow:
                    return
                while not runner.chronicle(sent, 1) and not runner.silent:
                    await change.wait()
                    await asyncio.sleep(WATCH_PAUSE)
                    change = runner.next_change()

    async def Cancel(self, request: wire.JobRequest, context: Any) -> wire.JobReply:
        """End a job."""
        runner = await self._jobs.find(request.job)
        if runner.machine.ended:
            raise Refused(f"job {runner.id} has already ended: {runner.machine.state.status}")
        name, who = _operator(context)
        await self._audit.record(who, "cancelled", runner.id)
        await runner.post(ev.CancelAsked(at=self._clock.now(), operator=name))
        return wire.JobReply(view_json=runner.view_with().model_dump_json())

    async def Delete(self, request: wire.JobRequest, context: Any) -> wire.DeleteReply:
        """Remove a job that has ended."""
        job = self._jobs.identify(request.job)
        await self._deletion.delete(job, _operator(context)[1])
        return wire.DeleteReply(job=job)

    async def Model(self, request: wire.ModelRequest, context: Any) -> AsyncIterator[bytes]:
        """Send a community model."""
        runner = await self._jobs.find(request.job)
        named = request.named or "last"
        if named not in ("best", "last"):
            raise InvalidInput("a version is a number, `best` or `last`")
        version, key = model_of(runner.machine, request.version if request.HasField("version") else named)
        who, origin = _operator(context)[1], runner.origin(version).model_dump_json()
        sending = self._downloads.send(key, set(), who, request.start, request.continued, origin)
        async for message in sending:
            yield message

    async def Audit(self, request: wire.AuditRequest, context: Any) -> AsyncIterator[wire.AuditReply]:
        """Send the audit log's records after one, and with `follow` each new one."""
        sent = self._audit.before_last(request.last, request.after)
        while True:
            written = self._audit.next_record()
            entries = await self._audit.read(sent, PAGE)
            sent = entries[-1].sequence if entries else sent
            yield wire.AuditReply(records_json=[entry.event for entry in entries])  # as for events
            if len(entries) < PAGE:
                if not request.follow:
                    return
                await written.wait()

    async def Logs(self, request: wire.LogsRequest, context: Any) -> wire.LogsReply:
        """Ask a site for the last lines of a daemon's log."""
        view = await self._fleet.read_log(request.site, request.role, request.lines, _operator(context)[0])
        return wire.LogsReply(role=view.role, lines=view.lines)

    async def Sites(self, request: wire.SitesRequest, context: Any) -> wire.SitesReply:
        """List the fleet."""
        return wire.SitesReply(views_json=[view.model_dump_json() for view in self._fleet.views()])

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        """Show the controller's status."""
        counts = dict(self._jobs.statuses())
        sites = len({session.site for session in self._fleet.sessions})
        view = self._status.model_copy(
            update={"jobs": counts, "sites": sites, "peak_memory_mib": peak_memory()}
        )
        return wire.StatusReply(view_json=view.model_dump_json())


def peak_memory() -> float:
    """Return the peak memory of this process, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _first(request: wire.HistoryRequest | wire.WatchRequest) -> int:
    """Return the first version that a reader wants."""
    return request.after + 1 if request.HasField("after") else 0


def _document(text: str) -> object:
    if len(text) > LARGEST_JOB:
        raise TooLarge(f"the job has {len(text)} characters; at most {LARGEST_JOB} are allowed")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidJob("the job is not a JSON document") from None


def _operator(context: Any, claimed: str = "") -> tuple[str, str]:
    """Return the operator's name, and that for the audit log; the claimed name counts only without TLS."""
    caller = caller_of(context)
    if caller:
        return caller.name, str(caller)
    name = claimed if NAME.fullmatch(claimed) else ""
    return name, f"operator {name or 'unnamed'} (not proven)"
