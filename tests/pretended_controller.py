"""The far end of an operator's channel: a gRPC service that answers with whatever a test has put into it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from hansa.common.rpc.channel import SERVER
from hansa.common.rpc.methods import handler
from hansa.common.values.history import Update, VersionView
from hansa.common.values.views import (
    AuditView,
    DaemonView,
    EventView,
    JobView,
    SiteProgress,
    StatusView,
)
from hansa.protos import operator_pb2 as wire

OPERATOR = wire.DESCRIPTOR.services_by_name["Operator"]
NOW = "2026-11-18T12:00:00+00:00"
CHAPTER = 100


@dataclass
class PretendedController:
    """Has one job. `change` gives it another state, and `watches` counts who watches it."""

    view: JobView
    history: list[VersionView] = field(default_factory=list)
    events: list[EventView] = field(default_factory=list)
    daemons: list[DaemonView] = field(default_factory=list)
    records: list[AuditView] = field(default_factory=list)
    closed: bool = False  # it refuses to say how the fleet is
    watches: int = 0
    watched: int = 0  # since the start
    asked: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, version: VersionView | None = None, **fields: Any) -> None:
        """Give the job a new version, or other fields."""
        if version:
            self.history.append(version)
            fields |= {"version": version.version, "rounds": version.version}
        self.view = self.view.model_copy(update=fields)
        self.changed.set()
        self.changed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Return what answers calls that no dashboard makes."""
        if name not in OPERATOR.methods_by_name:
            raise AttributeError(name)

        async def refuse(request: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not pretended")

        return refuse

    async def Show(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append("Show")
        if request.job not in (self.view.job, self.view.name):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such job")
        return wire.JobReply(view_json=self.view.model_dump_json())

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append("List")
        return wire.ListReply(views_json=[self.view.model_dump_json()])

    async def History(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append("History")
        after = request.after if request.HasField("after") else -1
        wanted = self.history[after + 1 :][: request.limit or None]
        for start in range(0, len(wanted), CHAPTER):
            part = wanted[start : start + CHAPTER]
            yield wire.HistoryReply(versions_json=_texts(part, request.detail))

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.watches += 1
        self.watched += 1
        after = request.after if request.HasField("after") else -1
        try:
            while True:
                changed = self.changed
                part = [each if request.detail else each.brief() for each in self.history[after + 1 :]]
                after += len(part)
                view = self.view.model_copy(update={"history": tuple(part)})
                yield wire.JobReply(view_json=view.model_dump_json())
                if view.ended:
                    return
                await changed.wait()
        finally:
            self.watches -= 1

    async def Events(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield wire.EventsReply(events_json=_texts(self.events[request.after :]))
        while request.follow and not self.view.ended:
            await self.changed.wait()

    async def Audit(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        if request.after > len(self.records):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no such record")
        yield wire.AuditReply(records_json=_texts(self.records[request.after :]))

    async def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append("Cancel")
        self.change(status="cancelled", reason="cancelled by an operator")
        return wire.JobReply(view_json=self.view.model_dump_json())

    async def Sites(self, request: Any, context: Any) -> Any:  # noqa: N802
        return wire.SitesReply(views_json=_texts(self.daemons))

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.closed:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is revoked")
        status = StatusView(
            controller="test", version="0", pid=1, address="127.0.0.1:1", store="memory:", state="",
            since=NOW, sites=0, jobs={}, peak_memory_mib=0,
        )  # fmt: skip
        return wire.StatusReply(view_json=status.model_dump_json())

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Listen on loopback until the block ends."""
        server = grpc.aio.server(options=SERVER)
        server.add_generic_rpc_handlers((handler(OPERATOR, self),))
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield f"127.0.0.1:{bound}"
        finally:
            await server.stop(grace=None)


def _texts(values: Iterable[Any], detail: bool = True) -> list[str]:
    return [(each if detail else each.brief()).model_dump_json() for each in values]


def job(**fields: Any) -> JobView:
    """Return a job that is running."""
    known = {"job": "j1", "name": "demo", "rule": "fedavg", "app": "app.py:app", "status": "running"}
    return JobView.model_validate(known | {"submitted": NOW, "rounds_asked": 10} | fields)


def version(number: int, sites: Iterable[str] = ("north", "south"), **fields: Any) -> VersionView:
    """Return a version that the sites have made."""
    loss = 1.0 / (number + 1)
    updates = [
        Update(site=site, weight=1.0, examples=10, used=10, steps=2, seconds=0.5, loss=loss) for site in sites
    ]
    known = {
        "version": number, "round": number, "seconds": float(number),
        "metrics": {"accuracy": 1 - loss, "loss": loss},
        "examples": 20, "examples_total": 20, "covered": True,
        "evaluated": True, "settled": True, "final": True,
        "updates": updates if number else [], "update_count": len(updates) if number else 0,
    }  # fmt: skip
    return VersionView.model_validate(known | fields)


def progress(site: str, **fields: Any) -> SiteProgress:
    """Return what a site is doing."""
    return SiteProgress.model_validate({"site": site, "state": "idle", "examples": 10} | fields)
