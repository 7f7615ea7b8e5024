"""`hansa.AsyncClient`: the operators' client of a controller."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hansa.common.client.connection import PATIENCE, Connection, read, request
from hansa.common.client.download import Downloaded, download
from hansa.common.client.endpoint import endpoint_of
from hansa.common.client.job import AsyncJob
from hansa.common.client.submission import Source, Submission, read_source
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint
from hansa.common.rpc.errors import translated
from hansa.common.values.errors import Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import AuditView, DaemonView, EventView, JobView, LogView, StatusView
from hansa.common.values.wording.words import plain
from hansa.protos import operator_pb2 as operator

AGAIN = 60.0  # seconds in which a submission with a key is sent again


class AsyncClient:
    """A connection to a controller; use it as an async context manager, or close it.

    What is not given is read from HANSA_CONTROLLER and HANSA_TLS, or from `hansa.toml`, as on the command
    line. Jobs are named by their id, a unique beginning of it, or a name that only one job has.
    """

    def __init__(self, controller: Endpoint | str | None = None, tls: str | Path | None = None) -> None:
        self.endpoint = endpoint_of(controller, tls)
        self._connection = Connection(self.endpoint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        await self._connection.close()

    async def submit(
        self,
        job: Source,
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option of the command is called
        key: str = "",
    ) -> AsyncJob:
        """Submit a job file, or what such a file says, with changes by dotted path.

        A `key` makes this repeatable: while the controller has a job that this operator has submitted with
        the same key, that job is returned; Taken is raised if it is another job. A submission with a key is
        sent again for some time if the connection is lost, so a restart of the controller does no harm.
        """
        submission = Submission(read_source(job, set), key)
        backoff, clock = Backoff(), asyncio.get_running_loop().time
        end = clock() + AGAIN
        while True:
            try:
                return await self._submit(submission)
            except Unreachable:
                if not key or not self._connection.reached or clock() > end:
                    raise
                await backoff.rest()

    async def _submit(self, submission: Submission) -> AsyncJob:
        limit = None if submission.brings_models else PATIENCE
        reply = await self._connection.ask(self._stub.Submit(submission.messages(), timeout=limit))
        return AsyncJob(self, read(JobView, reply.view_json))

    async def job(self, words: str) -> AsyncJob:
        """Find a job that somebody has submitted."""
        return AsyncJob(self, await self.show(words))

    async def jobs(self) -> list[JobView]:
        """Return all jobs, newest first, without their histories."""
        reply = await self._connection.ask(self._stub.List(operator.ListRequest(), timeout=PATIENCE))
        return [read(JobView, text) for text in reply.views_json]

    async def show(self, job: str, history: bool = True, detail: bool = True) -> JobView:
        """Return one job with its history; without `detail`, not with what single sites did and found."""
        return await self._connection.show(job, history, detail)

    async def history(
        self, job: str, after: int | None = None, limit: int = 0, detail: bool = True
    ) -> AsyncIterator[VersionView]:
        """Yield the versions of a job after one of them, or all; no more than `limit`, unless that is 0."""
        async for version in self._connection.history(job, after, limit, detail):
            yield version

    async def views(self, job: str, after: int | None = None, detail: bool = False) -> AsyncIterator[JobView]:
        """Yield a job's view after every change until it has ended or the connection breaks.

        Each has the versions that are new or have changed, without what single sites did and found unless
        `detail` is asked for.
        """
        async for view in self._connection.views(job, after, detail):
            yield view

    async def events(self, job: str, after: int = 0, follow: bool = False) -> AsyncIterator[EventView]:
        """Yield what happened in a job after an event; with `follow` also what happens until it ends."""
        async for event in self._connection.events(job, after, follow):
            yield event

    async def cancel(self, job: str) -> JobView:
        """Cancel a job; its last community model is kept."""
        reply = await self._connection.ask(self._stub.Cancel(request(job), timeout=PATIENCE))
        return read(JobView, reply.view_json)

    async def delete(self, job: str) -> str:
        """Delete a job that has ended, with its models and its journal; return its id."""
        reply = await self._connection.ask(self._stub.Delete(request(job)))  # a large job takes its time
        return plain(reply.job)

    async def audit(self, after: int = 0, follow: bool = False, last: int = 0) -> AsyncIterator[AuditView]:
        """Yield the audit log's records after one, or only the `last` of them.

        With `follow` each new one is yielded, too, until this is closed.
        """
        wanted = operator.AuditRequest(after=after, follow=follow, last=last)
        with self._connection.reaching(), translated():
            async for reply in self._stub.Audit(wanted):
                for text in reply.records_json:
                    yield read(AuditView, text)

    async def logs(self, site: str, role: str = "", lines: int = 0) -> LogView:
        """Return the last lines of a daemon's log, if its site shows them; 0: as many as it shows."""
        wanted = operator.LogsRequest(site=site, role=role, lines=lines)
        reply = await self._connection.ask(self._stub.Logs(wanted, timeout=PATIENCE))
        return LogView(site=site, role=plain(reply.role), lines=tuple(map(plain, reply.lines)))

    async def model(self, job: str, version: int | str = "last") -> Downloaded:
        """Download a community model (`best`, `last` or a number) and check it."""
        return await download(self._connection, job, version)

    async def sites(self) -> list[DaemonView]:
        """Return the daemons of all sites and what they are doing."""
        reply = await self._connection.ask(self._stub.Sites(operator.SitesRequest(), timeout=PATIENCE))
        return [read(DaemonView, text) for text in reply.views_json]

    async def status(self) -> StatusView:
        """Return the controller's identity and status."""
        reply = await self._connection.ask(self._stub.Status(operator.StatusRequest(), timeout=PATIENCE))
        return read(StatusView, reply.view_json)

    @property
    def _stub(self) -> Any:
        return self._connection.stub

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.endpoint}>"
