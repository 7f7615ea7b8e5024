"""Our errors on the wire: an interceptor turns them into statuses, `translated` turns statuses back."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from hansa.common.values.errors import HansaError, Unreachable, by_code, family

KIND = "hansa-error"
# The message of grpc.aio when the server ends a call that we are still writing to.
CUT_SHORT = "Internal error from Core"
log = logging.getLogger(__name__)


async def _abort(context: Any, error: Exception, method: str) -> NoReturn:
    if not isinstance(error, HansaError):
        log.error("%s failed unexpectedly", method, exc_info=error)
    _forget_frames(error)
    if isinstance(error, HansaError):
        await context.abort(grpc.StatusCode[error.code], _short(str(error)), ((KIND, type(error).__name__),))
    await context.abort(
        grpc.StatusCode.INTERNAL, "the controller met an unexpected error; its log has the details"
    )
    raise AssertionError  # abort always raises


def _forget_frames(error: BaseException | None) -> None:
    """Free what the call held.

    gRPC keeps the exception of `abort` in a reference cycle, and with it our error and its frames. Their
    messages of many megabytes would stay until Python collects cycles, which does not depend on their size.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _short(text: str) -> str:
    """Return what fits into a status: percent-encoded metadata, of which callers accept at most 8 KiB."""
    cut = text = text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair cannot be sent
    while len(quote(cut)) > 6000:
        cut = cut[: len(cut) * 3 // 4]
    return cut if cut == text else f"{cut} …"


def behaviour(handler: grpc.RpcMethodHandler) -> tuple[str, Callable[..., Any]]:
    """Return which of the four kinds a method is, and its function."""
    kinds = (
        "stream" if streaming else "unary"
        for streaming in (handler.request_streaming, handler.response_streaming)
    )
    kind = "_".join(kinds)
    return kind, getattr(handler, kind)


class Wrapping(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps every method when it is first called; later calls use the wrapped method."""

    def __init__(self) -> None:
        self._wrapped: dict[str, grpc.RpcMethodHandler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return a wrapped method, or None if there is no such method."""
        method = str(handler_call_details.method)
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return handler
            self._wrapped[method] = self.wrap(method, handler)
        return self._wrapped[method]

    @abstractmethod
    def wrap(self, method: str, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        """Return a method that does what `handler` does, and more."""


class ErrorStatuses(Wrapping):
    """Answers errors with the status of their class; unforeseen ones are logged and answered neutrally."""

    def wrap(self, method: str, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        """Return a method that answers with our errors, whichever of the four kinds it is."""
        kind, inner = behaviour(handler)

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await inner(request, context)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:
                await _abort(context, error, method)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for message in inner(request, context):
                    yield message
            except (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError):
                raise
            except Exception as error:
                await _abort(context, error, method)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            stream if handler.response_streaming else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def quiet_hang_ups() -> None:
    """Keep gRPC from logging a traceback for every caller that is gone before its answer is sent."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_not_hang_up)


def _is_not_hang_up(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


@contextmanager
def translated() -> Iterator[None]:
    """Raise the error class that the server raised, instead of grpc's."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # gRPC may answer our own cancellation with an error
            raise asyncio.CancelledError from None
        raise translate(error) from None


def translate(error: grpc.aio.AioRpcError) -> HansaError:
    """Return the error class that the server raised."""
    if error.code() is grpc.StatusCode.INTERNAL and str(error.details()).startswith(CUT_SHORT):
        return Unreachable("the connection ended while we were sending")  # another attempt will show why
    named = dict(error.trailing_metadata() or ()).get(KIND)
    kind = family().get(str(named)) or by_code(error.code().name)
    return kind(error.details() or error.code().name)
