"""The download of a community model, over as many connections as it takes."""

from typing import Any, NamedTuple

from hansa.common.client.connection import Connection, read, request
from hansa.common.models.model import Manifest
from hansa.common.rpc.backoff import Backoff
from hansa.common.rpc.errors import translated
from hansa.common.rpc.incoming import Incoming
from hansa.common.values.errors import Broken, InvalidInput, Unreachable
from hansa.common.values.resolved import ModelOrigin
from hansa.protos import operator_pb2 as operator

TRIES = 20  # to resume a broken download, in a row, without receiving another frame


class Downloaded(NamedTuple):
    """A community model: its manifest, its payload, and which model it is and how it was made."""

    manifest: Manifest
    payload: Any
    origin: ModelOrigin | None


async def download(connection: Connection, job: str, version: int | str = "last") -> Downloaded:
    """Download a community model (`best`, `last` or a number) and check it."""
    incoming, backoff, reached, futile = Incoming(finite=True), Backoff(), 0, 0
    with connection.reaching():
        while True:
            try:
                await _receive(connection, job, version, incoming)
            except Unreachable:
                futile = 0 if incoming.start > reached else futile + 1
                if not incoming.header or futile == TRIES:
                    raise
                if not futile:
                    backoff.reset()
                reached = incoming.start
                await backoff.rest()
            else:
                origin = _origin(incoming.origin, incoming.manifest)
                return Downloaded(incoming.manifest, incoming.payload, origin)


async def _receive(connection: Connection, job: str, version: int | str, incoming: Incoming) -> None:
    """Receive a model's frames over one connection, starting with the first that is missing."""
    start, header = incoming.start, incoming.header
    wanted = operator.ModelRequest(job=request(job).job, start=start, continued=header)
    try:
        if isinstance(version, str):
            wanted.named = version
        else:
            wanted.version = version
    except (TypeError, ValueError):
        raise InvalidInput(f"version {version!r}: a version is a number, `best` or `last`") from None
    with translated():
        stream = aiter(connection.stub.Model(wanted))
        incoming.begin(await anext(stream, b""))
        async for frame in stream:
            incoming.feed(frame)
    incoming.finish()


def _origin(text: str, manifest: Manifest) -> ModelOrigin | None:
    """Parse the controller's description of a model, which must match the model that it sent."""
    if not text:
        return None
    try:
        origin = read(ModelOrigin, text)
    except Broken:
        raise Broken("the controller's description of the model cannot be read") from None
    if origin.digest != manifest.digest.hex():
        raise Broken("the controller's description belongs to another model than the one that it sent")
    return origin
