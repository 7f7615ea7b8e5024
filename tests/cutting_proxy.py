"""A bad network: a TCP proxy that cuts its connections after some bytes, or holds back new ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PIECE = 64 << 10
# Seconds before a cut: gRPC discards data that have arrived but were not read yet.
PAUSE = 0.2


class CuttingProxy:
    """Passes bytes to and from an address."""

    def __init__(self, to: str, down: int | None = None) -> None:
        self._host, _, self._port = to.rpartition(":")
        self.down = down  # bytes from the server after which a connection is cut; None: never
        self.up: int | None = None  # bytes to the server after which a connection is stuck; None: never
        self.stuck = asyncio.Event()  # set when a connection is stuck
        self.passes = asyncio.Event()  # connections made while it is clear have to wait
        self.passes.set()
        self.made = asyncio.Event()  # set with every new connection
        self.cuts = self.received = self.sent = 0  # connections cut; bytes from and to the server
        self.record: bytearray | None = None  # if set: what passes, both ways
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["CuttingProxy"]:
        """Listen on loopback until the block ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all connections."""
        for task in list(self._tasks):
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made.set()
        try:
            await self.passes.wait()
            back, forth = await asyncio.open_connection(self._host, int(self._port))
            try:
                await self._carry((reader, forth), (back, writer))
            finally:
                forth.transport.abort()
        except OSError:
            pass  # nothing is listening there at the moment
        finally:
            writer.close()  # data that have passed arrive; an abort would discard an arbitrary part of them
            with suppress(OSError):
                await writer.wait_closed()

    async def _carry(
        self,
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass bytes on both ways until one side ends."""
        ways = [asyncio.ensure_future(self._up(*up)), asyncio.ensure_future(self._down(*down))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                passed += len(piece)
                self.sent += len(piece)
                self._note(piece)
                writer.write(piece)
                await writer.drain()
                if self.up is not None and passed >= self.up:
                    self.stuck.set()
                    await asyncio.Event().wait()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                passed += len(piece)
                self.received += len(piece)
                self._note(piece)
                writer.write(piece)
                await writer.drain()
                if self.down is not None and passed >= self.down:
                    self.cuts += 1
                    await asyncio.sleep(PAUSE)
                    return

    def _note(self, piece: bytes) -> None:
        if self.record is not None:
            self.record += piece
