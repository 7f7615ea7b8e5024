"""The yardstick: a bare grpc.aio server and clients, each a process, that only move the bytes of a round."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import grpc
from harness import end_process

MESSAGE = 1 << 20
ADDRESS = "127.0.0.1"


def _messages(size: int) -> list[bytes]:
    payload = os.urandom(size)
    return [payload[at : at + MESSAGE] for at in range(0, size, MESSAGE)]


def _server(size: int, parent: Connection) -> None:
    """Send the model to every caller, and discard what arrives."""
    frames = _messages(size)

    async def down(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    async def up(messages: AsyncIterator[bytes], _context: Any) -> bytes:
        async for _ in messages:
            pass
        return b""

    async def serve() -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        methods = {
            "down": grpc.unary_stream_rpc_method_handler(down),
            "up": grpc.stream_unary_rpc_method_handler(up),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", methods),))
        port = server.add_insecure_port(f"{ADDRESS}:0")
        await server.start()
        parent.send(port)
        await asyncio.to_thread(parent.poll, None)  # until the parent hangs up
        await server.stop(0)

    asyncio.run(serve())


def _client(port: int, barrier: Any, parent: Connection) -> None:
    """Whenever the parent asks: wait for the others, download, upload the same bytes, report the times."""

    async def work() -> None:
        async with grpc.aio.insecure_channel(f"{ADDRESS}:{port}") as channel:
            down, up = channel.unary_stream("/bare/down"), channel.stream_unary("/bare/up")
            while rounds := await asyncio.to_thread(parent.recv):
                times = []
                for _ in range(rounds):
                    await asyncio.to_thread(barrier.wait)
                    started = time.monotonic()
                    frames = [frame async for frame in down(b"")]
                    await up(_each(frames))
                    times.append((started, time.monotonic()))
                parent.send(times)

    asyncio.run(work())


async def _each(frames: list[bytes]) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


class BareGrpc:
    """A server and its clients, kept waiting between measurements. Use it as a context manager."""

    def __init__(self, clients: int, size: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._clients = clients
        self._size = size
        self._exit = ExitStack()
        self._lines: list[Connection] = []

    def __enter__(self) -> "BareGrpc":
        with self._exit:
            self._server = self._start(_server, self._size)
            port = self._server.recv()
            self._barrier = self._context.Barrier(self._clients)
            self._lines = [self._start(_client, port, self._barrier) for _ in range(self._clients)]
            self._exit = self._exit.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._exit.close()

    def _start(self, work: Any, *arguments: Any) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        self._exit.callback(end_process, process)
        return ours

    def rounds(self, count: int) -> list[float]:
        """Return the seconds of each round, from the first client's start to the last one's end."""
        for line in self._lines:
            line.send(count)
        answers = [line.recv() for line in self._lines]
        per_round = zip(*answers, strict=True)
        return [max(end for _, end in times) - min(start for start, _ in times) for times in per_round]
