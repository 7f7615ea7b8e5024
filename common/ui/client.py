"""The operators' client of a controller."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.models.frames import cut
from hansa.common.models.model import Manifest
from hansa.common.rpc import codec
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.channel import Endpoint, connect
from hansa.common.rpc.errors import translated
from hansa.common.rpc.incoming import Incoming
from hansa.common.rpc.methods import Stub
from hansa.common.values.errors import Broken, InvalidInput, Unreachable
from hansa.common.values.resolved import ModelOrigin
from hansa.common.values.views import AuditView, DaemonView, EventView, JobView, LogView, StatusView
from hansa.common.values.words import cleaned, plain
from hansa.protos import operator_pb2 as operator

if TYPE_CHECKING:
    from hansa.common.rpc.tls import Credentials

DOCUMENT = 256 << 20  # a job with a very long history
PATIENCE = 20.0  # seconds to wait for an answer
V = TypeVar("V", AuditView, JobView, DaemonView, EventView, StatusView, ModelOrigin)
TRIES = 20  # to resume a broken download, in a row, without receiving another frame


class Client:
    """A connection to a controller; use it as an async context manager."""

    def __init__(self, controller: Endpoint | str) -> None:
        self._to = controller if isinstance(controller, Endpoint) else Endpoint(controller)
        self._channel = connect(self._to.address, DOCUMENT, _credentials(self._to))
        self._stub = Stub(self._channel, operator.DESCRIPTOR.services_by_name["Operator"])

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def submit(self, spec: JobSpec) -> JobView:
        """Submit a job, with its initial model and its reference if it names them."""
        document = spec.model_dump(
            mode="json", exclude={"init", "reference", "data", "simulate", "operator", "made_with"}
        )
        header = operator.SubmitHeader(operator=_user())
        payloads: list[Any] = []
        if spec.init:
            manifest, payload = load_checkpoint(Path(spec.init))
            header.manifest.MergeFrom(codec.manifest_to_wire(manifest))
            payloads.append(payload)
        if spec.reference:
            manifest, payload = load_checkpoint(Path(spec.reference))
            header.reference.MergeFrom(codec.manifest_to_wire(manifest))
            # An older controller then refuses the job because of an unknown field.
            document["reference"] = manifest.digest.hex()
            payloads.append(payload)
        header.job_json = json.dumps(document)

        async def messages() -> AsyncIterator[bytes]:
            yield header.SerializeToString()
            for payload in payloads:
                for frame in cut(payload):
                    yield frame.tobytes()

        reply = await self._ask(self._stub.Submit(messages(), timeout=None if payloads else PATIENCE))
        return _read(JobView, reply.view_json)

    async def show(self, job: str) -> JobView:
        """Return one job."""
        reply = await self._ask(self._stub.Show(_request(job), timeout=PATIENCE))
        return _read(JobView, reply.view_json)

    async def jobs(self) -> list[JobView]:
        """Return all jobs, newest first."""
        reply = await self._ask(self._stub.List(operator.ListRequest(), timeout=PATIENCE))
        return [_read(JobView, text) for text in reply.views_json]

    async def watch(self, job: str) -> AsyncIterator[JobView]:
        """Yield a job's view after every change until it has ended."""
        with self._reaching(), translated():
            async for reply in self._stub.Watch(_request(job)):
                yield _read(JobView, reply.view_json)

    async def events(self, job: str, after: int = 0, follow: bool = False) -> AsyncIterator[EventView]:
        """Yield what happened in a job after an event; with `follow` also what happens until it ends."""
        request = operator.EventsRequest(job=_request(job).job, after=after, follow=follow)
        with self._reaching(), translated():
            async for reply in self._stub.Events(request):
                for text in reply.events_json:
                    yield _read(EventView, text)

    async def cancel(self, job: str) -> JobView:
        """Cancel a job."""
        reply = await self._ask(self._stub.Cancel(_request(job), timeout=PATIENCE))
        return _read(JobView, reply.view_json)

    async def delete(self, job: str) -> str:
        """Delete a job that has ended, models and all; return its id."""
        reply = await self._ask(self._stub.Delete(_request(job)))  # a large job takes its time
        return plain(reply.job)

    async def audit(self, after: int = 0, follow: bool = False) -> AsyncIterator[AuditView]:
        """Yield the audit log's records after one; with `follow` also each new one, until this is closed."""
        with self._reaching(), translated():
            async for reply in self._stub.Audit(operator.AuditRequest(after=after, follow=follow)):
                for text in reply.records_json:
                    yield _read(AuditView, text)

    async def logs(self, site: str, role: str = "", lines: int = 0) -> LogView:
        """Return the last lines of a daemon's log, if the site's policy allows it."""
        request = operator.LogsRequest(site=site, role=role, lines=lines)
        reply = await self._ask(self._stub.Logs(request, timeout=PATIENCE))
        return LogView(site=site, role=plain(reply.role), lines=tuple(map(plain, reply.lines)))

    async def model(self, job: str, version: int | None = None) -> tuple[Manifest, Any]:
        """Download a community model and check it; return its manifest and payload."""
        return (await self.export(job, version))[:2]

    async def export(self, job: str, version: int | None = None) -> tuple[Manifest, Any, ModelOrigin | None]:
        """Download a community model and check it; return its manifest, its payload and its origin."""
        incoming, backoff, reached, futile = Incoming(finite=True), Backoff(), 0, 0
        with self._reaching():
            while True:
                try:
                    await self._receive(job, version, incoming)
                except Unreachable:
                    futile = 0 if incoming.start > reached else futile + 1
                    if not incoming.header or futile == TRIES:
                        raise
                    if not futile:
                        backoff.reset()
                    reached = incoming.start
                    await backoff.rest()
                else:
                    return incoming.manifest, incoming.payload, _origin(incoming.origin, incoming.manifest)

    async def _receive(self, job: str, version: int | None, incoming: Incoming) -> None:
        """Receive a model's frames over one connection, starting with the first that is missing."""
        start, header = incoming.start, incoming.header
        request = operator.ModelRequest(job=_request(job).job, version=version, start=start, continued=header)
        with translated():
            stream = aiter(self._stub.Model(request))
            incoming.begin(await anext(stream, b""))
            async for frame in stream:
                incoming.feed(frame)
        incoming.finish()

    async def sites(self) -> list[DaemonView]:
        """Return the fleet."""
        reply = await self._ask(self._stub.Sites(operator.SitesRequest(), timeout=PATIENCE))
        return [_read(DaemonView, text) for text in reply.views_json]

    async def status(self) -> StatusView:
        """Return the controller's status."""
        reply = await self._ask(self._stub.Status(operator.StatusRequest(), timeout=PATIENCE))
        return _read(StatusView, reply.view_json)

    async def _ask(self, call: Any) -> Any:
        with self._reaching(), translated():
            return await call

    def _reaching(self) -> "_Reaching":
        return _Reaching(self._to)


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


def _read(kind: type[V], text: str) -> V:
    """Parse a view; text from the controller or a site is cleaned here."""
    try:
        return kind.model_validate(cleaned(json.loads(text)))
    except (ValueError, RecursionError):
        raise Broken(
            "the controller's answer cannot be read; does it run another version of Hansa?"
        ) from None


def _origin(text: str, manifest: Manifest) -> ModelOrigin | None:
    """Parse the controller's description of a model, which must match the model that it sent."""
    if not text:
        return None
    try:
        origin = _read(ModelOrigin, text)
    except Broken:
        raise Broken("the controller's description of the model cannot be read") from None
    if origin.digest != manifest.digest.hex():
        raise Broken("the controller's description belongs to another model than the one that it sent")
    return origin


def _user() -> str:
    """Return the user's name; with TLS the controller takes the name in the certificate instead."""
    import getpass

    try:
        return plain(getpass.getuser())
    except (OSError, KeyError):
        return ""


def _request(job: str) -> operator.JobRequest:
    """Return the request for a job; refuse a name that cannot be sent."""
    try:
        return operator.JobRequest(job=job)
    except UnicodeEncodeError:
        raise InvalidInput(f"job {job!r}: the text is not UTF-8; `hansa job list` shows all jobs") from None


def _credentials(to: Endpoint) -> "Credentials | None":
    if to.tls is None:
        return None
    from hansa.common.rpc.tls import Credentials

    return Credentials.load(to.tls)
