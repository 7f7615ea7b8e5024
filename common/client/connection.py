"""A connection to a controller: its channel, its answers as values, and errors with hints."""

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from pydantic import BaseModel

from hansa.common.rpc.channel import Endpoint, connect
from hansa.common.rpc.errors import translated
from hansa.common.rpc.methods import Stub
from hansa.common.values.errors import Broken, InvalidInput, Unreachable
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView
from hansa.common.values.wording.words import cleaned
from hansa.protos import operator_pb2 as operator

if TYPE_CHECKING:
    from hansa.common.rpc.tls import Credentials

DOCUMENT = 256 << 20  # a job with a very long history
PATIENCE = 20.0  # seconds to wait for an answer
V = TypeVar("V", bound=BaseModel)


class Connection:
    """A channel to a controller, which is opened by the first call and closed by `close`."""

    def __init__(self, to: Endpoint) -> None:
        self.to = to
        _credentials(to)  # says at once if they cannot be used; the channel reads them again
        self.reached = False  # whether it has ever been answered
        self._channel: grpc.aio.Channel | None = None
        self._stub: Stub | None = None

    @property
    def stub(self) -> Stub:
        """The operators' calls. Use it on an event loop."""
        if self._stub is None:
            self._channel = connect(self.to.address, DOCUMENT, _credentials(self.to))
            self._stub = Stub(self._channel, operator.DESCRIPTOR.services_by_name["Operator"])
        return self._stub

    async def close(self) -> None:
        """Hang up; the next call opens another channel."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def ask(self, call: Any) -> Any:
        """Return what a call is answered with."""
        with self.reaching(), translated():
            answer = await call
        self.reached = True
        return answer

    async def show(self, job: str, history: bool = True, detail: bool = True) -> JobView:
        """Return one job, with its history; without `detail`, not with what single sites did and found."""
        reply = await self.ask(self.stub.Show(request(job), timeout=PATIENCE))
        view = read(JobView, reply.view_json)
        if not history:
            return view
        versions = [version async for version in self.history(view.job, detail=detail)]
        # More may have come meanwhile, and the view is of the moment before.
        shown = tuple(version for version in versions if version.version <= view.version)
        return view.model_copy(update={"history": shown})

    async def history(
        self, job: str, after: int | None = None, limit: int = 0, detail: bool = True
    ) -> AsyncIterator[VersionView]:
        """Yield the versions of a job after one of them, or all; no more than `limit`, unless that is 0."""
        wanted = operator.HistoryRequest(job=request(job).job, after=after, limit=limit, detail=detail)
        with self.reaching(), translated():
            async for reply in self.stub.History(wanted):
                for text in reply.versions_json:
                    yield read(VersionView, text)

    async def views(self, job: str, after: int | None = None, detail: bool = False) -> AsyncIterator[JobView]:
        """Yield a job's view after every change until it has ended or the connection breaks.

        The history in a view has the versions after `after` that are new, and versions that have changed
        since the view before. A job that has ended may have several last views, each with other versions.
        """
        wanted = operator.WatchRequest(job=request(job).job, after=after, detail=detail)
        with self.reaching(), translated():
            async for reply in self.stub.Watch(wanted):
                yield read(JobView, reply.view_json)

    async def events(self, job: str, after: int = 0, follow: bool = False) -> AsyncIterator[EventView]:
        """Yield what happened in a job after an event; with `follow` also what happens until it ends."""
        wanted = operator.EventsRequest(job=request(job).job, after=after, follow=follow)
        with self.reaching(), translated():
            async for reply in self.stub.Events(wanted):
                for text in reply.events_json:
                    yield read(EventView, text)

    def reaching(self) -> "_Reaching":
        """Return a context that adds address and hints to an error when there is no answer."""
        return _Reaching(self.to)


async def ask_health(controller: Endpoint) -> bool:
    """Ask the standard health service; any certificate of the authority will do."""
    channel = connect(controller.address, credentials=_credentials(controller))
    try:
        with _Reaching(controller), translated():
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            return bool(await check(b"", timeout=PATIENCE) == b"\x08\x01")  # HealthCheckResponse{SERVING}
    finally:
        await channel.close()


class _Reaching:
    """Adds the address and hints to the error when there is no answer."""

    def __init__(self, to: Endpoint) -> None:
        self._to = to

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if isinstance(error, Unreachable):
            hint = (
                f"it may also refuse the certificate, see `hansa pki show {self._to.tls}`"
                if self._to.tls
                else "if it uses TLS, --tls or HANSA_TLS names the folder with your certificate"
            )
            raise Unreachable(
                f"no controller answers at {self._to} ({error}); is it running? `hansa controller start`"
                f" starts one, --controller or HANSA_CONTROLLER gives its address; {hint}"
            ) from None


def read(kind: type[V], text: str) -> V:
    """Parse a view; text from the controller or a site is cleaned here."""
    try:
        return kind.model_validate(cleaned(json.loads(text)))
    except (ValueError, RecursionError):
        raise Broken(
            "the controller's answer cannot be read; does it run another version of Hansa?"
        ) from None


def request(job: str) -> operator.JobRequest:
    """Return the request for a job; refuse a name that cannot be sent."""
    if not isinstance(job, str) or not job:
        raise InvalidInput(f"job {job!r}: write its id, the beginning of one, or its name, as text")
    try:
        return operator.JobRequest(job=job)
    except UnicodeEncodeError:
        raise InvalidInput(f"job {job!r}: the text is not UTF-8; `hansa job list` shows all jobs") from None


def _credentials(to: Endpoint) -> "Credentials | None":
    if to.tls is None:
        return None
    from hansa.common.rpc.tls import Credentials

    return Credentials.load(to.tls)
