"""A daemon's connection to its controller: encrypted with its certificate, replaced when that is renewed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from hansa.common.rpc.channel import connect, is_loopback
from hansa.common.rpc.methods import Stub
from hansa.common.values.ids import SiteName
from hansa.protos import fleet_pb2 as fleet

if TYPE_CHECKING:
    from hansa.common.rpc.tls import TlsFolder

log = logging.getLogger(__name__)

APART = 8 << 20  # bytes from which a transfer has its own connection
FLEET = fleet.DESCRIPTOR.services_by_name["Fleet"]
FAREWELL = 3600.0  # seconds that transfers on an old connection may take after a renewal


@dataclass(frozen=True)
class Identity:
    """A daemon's name, role and certificate, and the controller that it works for."""

    controller: str
    site: SiteName
    role: str  # learner or evaluator
    tls: Path | None = None  # folder with the certificate


class Connection:
    """The channel that is in use, and those that are still being closed."""

    def __init__(self, identity: Identity) -> None:
        self.hurry = True  # give up soon on a host that does not answer; not after many failures
        self._identity = identity
        self._tls = _tls_of(identity)
        self._chores: set[asyncio.Task[None]] = set()
        self._connect()

    def _connect(self) -> None:
        self.channel = self._channel()
        self.stub = Stub(self.channel, FLEET)

    def _channel(self, alone: bool = False) -> grpc.aio.Channel:
        credentials = self._tls.credentials if self._tls else None
        return connect(self._identity.controller, credentials=credentials, alone=alone, hurry=self.hurry)

    def replace(self) -> None:
        """Use a new channel; transfers on the old one may finish.

        A channel that got no answer is replaced, too: gRPC's own pauses grow with every failure, to minutes
        if the controller's name could not be looked up, and they cannot be shortened.
        """
        self.attach(self.channel.close(FAREWELL))
        self._connect()

    def renew(self) -> bool:
        """Connect with a new certificate, if there is one; transfers on the old connection may finish."""
        if self._tls is None or not self._tls.refresh():
            return False
        self.replace()
        return True

    @asynccontextmanager
    async def apart(self, size: int) -> AsyncIterator[Stub]:
        """Lend a stub for moving `size` bytes; a large transfer gets its own connection, closed afterwards.

        A connection that has moved a large model keeps some of the controller's memory until it is closed,
        and heartbeats would have to wait behind the model's frames.
        """
        if size < APART:
            yield self.stub
            return
        channel = self._channel(alone=True)
        try:
            yield Stub(channel, FLEET)
        finally:
            await channel.close()

    def attach(self, chore: Coroutine[Any, Any, None]) -> None:
        """Run something beside the session, until the connection is closed."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Hang up."""
        for chore in self._chores:
            chore.cancel()
        await self.channel.close()


def _tls_of(identity: Identity) -> "TlsFolder | None":
    if identity.tls is None:
        if not is_loopback(identity.controller):
            log.warning(
                "the connection to %s is not encrypted, and neither side proves its identity",
                identity.controller,
            )
        return None
    from hansa.common.rpc.tls import TlsFolder

    return TlsFolder(identity.tls, (identity.role,), identity.site)
