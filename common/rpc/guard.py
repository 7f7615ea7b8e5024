"""The guard in front of every RPC: who is calling, may they do so, and are their messages within the limits?

With TLS the certificate names the caller, and a message that claims another sender is refused. Without TLS
(loopback, or --insecure) there is no proof, and the claim is believed. Every request is read here, message by
message, so that nothing is decoded before its size is known and no caller can be silent for ever.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from hansa.common.pki.caller import Caller, caller_of_pem
from hansa.common.rpc.access import TABLE, Access, Claim, require_uncrowded
from hansa.common.rpc.errors import Wrapping, behaviour
from hansa.common.values.errors import Forbidden, HansaError, InvalidInput, Taken, TooLarge, Unproven

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hansa.common.rpc.tls import ServerTls

log = logging.getLogger(__name__)
PATIENCE = 20.0  # seconds for the first message
Refusal = Callable[[str, str, str], None]  # who, which RPC, why
CALLS, COUNTED = 64, 16  # calls under way for one caller: of all kinds, and of each counted kind


@dataclass(frozen=True)
class Limits:
    """How much one caller may have under way."""

    calls: int = CALLS
    counted: int = COUNTED
    patience: float = PATIENCE
    silence: float | None = None  # instead of the table's, for tests


@dataclass(eq=False)
class Call:
    """A call under way."""

    caller: Caller | None
    task: "asyncio.Task[Any] | None"
    ended: HansaError | None = None  # why we ended it
    counts: list[tuple[str, str]] = field(
        default_factory=list
    )  # the caller and kind that it is counted under
    _due: float | None = None  # the deadline, while we wait for a message
    _why: str = ""
    timer: asyncio.TimerHandle | None = None  # rarely set anew: doing so for every message would cost more

    async def next(self, stream: AsyncIterator[bytes], seconds: float | None, what: str) -> bytes | None:
        """Return the next message; end the call if none arrives in time."""
        if seconds is None:
            return await anext(stream, None)
        loop = asyncio.get_running_loop()
        self._due, self._why = loop.time() + seconds, f"{what} for {seconds:g} s, which is the limit"
        if self.timer and self.timer.when() > self._due:
            self.close()
        if self.timer is None:
            self.timer = loop.call_at(self._due, self.look)
        try:
            return await anext(stream, None)
        finally:
            self._due = None

    def look(self) -> None:
        """End the call if its message is overdue; otherwise look again when it is due."""
        loop, self.timer = asyncio.get_running_loop(), None
        if self._due is None:
            return  # a message has arrived and is being handled
        if loop.time() < self._due:
            self.timer = loop.call_at(self._due, self.look)
        else:
            self.end(TooLarge(self._why))

    def end(self, why: HansaError) -> None:
        """End the call."""
        if self.task and self.ended is None:
            self.ended = why
            self.task.cancel(str(why))  # the servicer may want to know

    def close(self) -> None:
        """Stop waiting."""
        if self.timer:
            self.timer.cancel()
            self.timer = None


def caller_of(context: Any) -> Caller | None:
    """Return the caller that the certificate names; None if the connection has no TLS."""
    security = context.auth_context()
    kind = security.get("transport_security_type", [b""])[0]
    if kind in (b"", b"insecure"):
        return None
    certificates = security.get("x509_pem_cert")
    if not certificates:
        raise Unproven("no certificate was presented")
    return caller_of_pem(certificates[0])


class Guard(Wrapping):
    """Lets only those calls through that the table allows."""

    def __init__(
        self, tls: "ServerTls | None" = None, limits: Limits | None = None, refused: Refusal | None = None
    ) -> None:
        super().__init__()
        self._tls = tls
        self._limits = limits or Limits()
        self._refused = refused or (
            lambda who, method, why: log.warning("%s: %s refused: %s", who, method, why)
        )
        self._calls: set[Call] = set()
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def calls(self) -> frozenset[Call]:
        """The calls under way."""
        return frozenset(self._calls)

    @property
    def callers(self) -> set[str]:
        """Those whose calls are being counted."""
        return {caller for caller, _ in self._counts}

    def wrap(self, method: str, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        """Return a guarded method. It takes every request as a stream of bytes, which it is on the wire."""
        access = TABLE.get(method)
        _, inner = behaviour(handler)

        async def prepared(call: Call, messages: AsyncIterator[bytes]) -> Any:
            request = self._read(call, method, access, handler.request_deserializer, messages)
            first = await anext(request)  # a refusal comes before the servicer is called
            if handler.request_streaming:
                return _chained(first, request)
            await request.aclose()
            return first

        async def answer(messages: AsyncIterator[bytes], context: Any) -> Any:
            with self._entered(method, context) as call:
                return await inner(await prepared(call, messages), context)

        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            with self._entered(method, context) as call:
                async for message in inner(await prepared(call, messages), context):
                    yield message

        encode = handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, encode)
        return grpc.stream_unary_rpc_method_handler(answer, None, encode)

    @contextmanager
    def _entered(self, method: str, context: Any) -> "Iterator[Call]":
        """Count a call while it lasts, and report refusals."""
        call = Call(None, asyncio.current_task())
        self._calls.add(call)
        try:
            if self._tls:
                call.caller = caller_of(context)
                self._require_allowed(self._tls, call.caller, method)
            if call.caller:
                self._count(call, str(call.caller), self._limits.calls, "calls")
            yield call
        except asyncio.CancelledError:
            if call.ended is None:
                raise
            if call.task:
                call.task.uncancel()
            self._report(call, method, context, call.ended)
            raise call.ended from None
        except (Unproven, Forbidden, Taken, TooLarge) as error:
            self._report(call, method, context, error)
            raise
        finally:
            call.close()
            self._calls.discard(call)
            for key in call.counts:
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]

    def _report(self, call: Call, method: str, context: Any, error: HansaError) -> None:
        who = str(call.caller or f"unproven {context.peer().rpartition(':')[0]}")
        self._refused(who, method.rpartition("/")[2], str(error))

    @staticmethod
    def _require_allowed(tls: "ServerTls", caller: Caller | None, method: str) -> None:
        """Refuse a caller whose certificate is not good or whose role may not call the method."""
        if caller is None:
            raise Unproven("this controller answers over TLS only")
        tls.require_good(caller)
        access = TABLE.get(method)
        if access is None or caller.role not in access.roles:
            allowed = " or ".join(f"{role}s" for role in sorted(access.roles)) if access else "nobody"
            raise Forbidden(f"{caller} may not call {method.rpartition('/')[2]}: only {allowed} may")

    def _count(self, call: Call, who: str, most: int, what: str) -> None:
        if self._counts[who, what] >= most:
            raise TooLarge(f"{who} has {most} {what} under way, which is the limit")
        self._counts[who, what] += 1
        call.counts.append((who, what))

    def _count_kind(self, call: Call, access: Access, named: str) -> None:
        """Count a call among those of its kind, if that has its own limit."""
        if access.counted:
            most = min(access.most or self._limits.counted, self._limits.counted)
            self._count(call, named or "everybody", most if named else self._limits.calls, access.counted)

    async def _read(
        self,
        call: Call,
        method: str,
        access: Access | None,
        decode: Callable[[bytes], Any] | None,
        messages: AsyncIterator[bytes],
    ) -> AsyncGenerator[Any, None]:
        """Yield a call's messages, checked and decoded."""
        if access is None:
            raise Forbidden(f"{method} may not be called by any role")
        stream: Any = aiter(messages)
        async with aclosing(stream):  # a reference cycle in gRPC keeps the last message of an open stream
            async for message in self._checked(call, method, access, decode, stream):
                yield message

    async def _checked(
        self,
        call: Call,
        method: str,
        access: Access,
        decode: Callable[[bytes], Any] | None,
        stream: AsyncIterator[bytes],
    ) -> AsyncIterator[Any]:
        silence = access.silence and (self._limits.silence or access.silence)
        if call.caller:  # before gRPC collects a message of many bytes
            self._count_kind(call, access, str(call.caller))
        first = await call.next(stream, self._limits.patience, "no message arrived")
        if first is None:
            raise InvalidInput(f"{method.rpartition('/')[2]} was called without a message")
        message = _decoded(first, access.first, decode, method)
        claim = access.claim(message)
        self._require_own(call.caller, claim)
        if call.caller is None:
            self._count_kind(call, access, claim.site if claim else "")
        yield message
        while access.further:
            further = await call.next(stream, silence, "no further message arrived")
            if further is None:
                return
            yield _decoded(further, access.further, decode, method)

    def _require_own(self, caller: Caller | None, claim: Claim | None) -> None:
        if caller is None or claim is None:
            return
        if claim.site != caller.name or claim.role not in (None, caller.role):
            raise Forbidden(f"{caller} cannot act as {claim.role or 'site'} {claim.site[:64]!r}")

    def sweep(self) -> None:
        """End the calls whose certificates have expired or been revoked since they began."""
        if self._tls is None:
            return
        self._tls.refresh_revoked()
        for call in list(self._calls):
            if call.caller is None:
                continue
            try:
                self._tls.require_good(call.caller)
            except Unproven as error:
                call.end(error)


def _decoded(message: bytes, most: int, decode: Callable[[bytes], Any] | None, method: str) -> Any:
    name = method.rpartition("/")[2]
    if len(message) > most:
        raise TooLarge(f"a message of {len(message)} bytes for {name}; at most {most} are allowed")
    require_uncrowded(message)
    if decode is None:
        return message
    try:
        return decode(message)
    except (DecodeError, ValueError):
        raise InvalidInput(f"the message for {name} cannot be decoded") from None


async def _chained(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for message in rest:
        yield message
