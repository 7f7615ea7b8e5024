"""The standard health service, grpc.health.v1, which load balancers and orchestrators know how to probe.

Its two messages have one field each, so they are encoded here by hand: a generated module could clash with
that of another library in the same process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from hansa.common.values.errors import InvalidInput, NotFound

NAME = "grpc.health.v1.Health"
SERVING, NOT_SERVING, UNKNOWN_SERVICE = b"\x08\x01", b"\x08\x02", b"\x08\x03"  # HealthCheckResponse{status}
SERVICES = ("", "hansa.v1.Fleet", "hansa.v1.Operator")
PAUSE = 1.0  # seconds between two checks for callers that watch


class Health:
    """Says whether the controller can work: it can while its store can be used."""

    def __init__(self, trouble: Callable[[], str]) -> None:
        self._trouble = trouble

    def _status(self, request: bytes) -> bytes:
        if _service(request) not in SERVICES:
            return UNKNOWN_SERVICE
        return NOT_SERVING if self._trouble() else SERVING

    async def check(self, request: bytes, context: Any) -> bytes:
        """Answer once."""
        status = self._status(request)
        if status == UNKNOWN_SERVICE:
            raise NotFound("unknown service")
        return status

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Answer now and after every change."""
        last = b""
        while True:
            status = self._status(request)
            if status != last:
                yield status
            last = status
            await asyncio.sleep(PAUSE)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service."""
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
            },
        )


def _service(request: bytes) -> str:
    """Decode HealthCheckRequest{service}."""
    if not request:
        return ""
    try:
        if request[0] != 0x0A or request[1] != len(request) - 2 or request[1] > 127:
            raise InvalidInput("a health check must name a service")
        return request[2:].decode()
    except (IndexError, UnicodeDecodeError):
        raise InvalidInput("the health service is asked with the name of a service") from None
