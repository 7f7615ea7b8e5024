"""Back-pressure: how many transfers run at full speed at once. The others wait at the gate; none is refused.

A transfer takes memory if its frames come faster than they are processed. A transfer over a slow link needs
hardly any, so it goes on without a place: a hundred slow sites are served at once, while fast ones take
turns. A small model cannot take much memory either: a dozen of them fit where one large model does, and they
need not wait for each other's links. Nobody has more than one place at a time: the transfers of one site or
operator wait in a line of their own.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hansa.common.models.frames import FRAME

SLOW = 0.5  # seconds without a frame after which a transfer gives its place to others
PLACE = 64 << 20  # bytes of the memory budget for each place of a large model
FEWEST, MOST = 2, max(4, 2 * (os.cpu_count() or 1))  # places; more at once would not move more bytes
HELD = 16 * FRAME  # bytes that one transfer has in memory at most: on the wire, waiting, being processed


class _Room:
    """A number of bytes, handed out in the order of the requests."""

    def __init__(self, size: int) -> None:
        self.free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int) -> None:
        """Wait for `size` bytes."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # they were handed out at the last moment
                self.free += size
            self._serve()
            raise

    def release(self, size: int) -> None:
        """Give bytes back."""
        self.free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if size > self.free and not turn.cancelled():
                return
            self._waiting.popleft()
            if not turn.cancelled():
                self.free -= size
                turn.set_result(None)


@dataclass
class _Line:
    """The transfers of one site or operator: one has a place or waits for one, the others wait for it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class Gate:
    """A gate with a few places."""

    def __init__(self, memory: int) -> None:
        self._room = _Room(HELD * max(FEWEST, min(MOST, memory // PLACE)))
        self._lines: dict[str, _Line] = {}

    @property
    def free(self) -> int:
        """The bytes that no transfer has."""
        return self._room.free

    @property
    def callers(self) -> set[str]:
        """The sites and operators whose transfers have a place or wait for one."""
        return set(self._lines)

    async def enter(self, who: str, size: int = HELD) -> "Place":
        """Wait for a place for a model of `size` bytes; the caller must leave it."""
        place = self.place(who, size)
        await place.enter()
        return place

    def place(self, who: str, size: int = HELD) -> "Place":
        """Return a place for a model of `size` bytes that is yet to be entered."""
        return Place(self, who, min(max(size, FRAME), HELD))

    @asynccontextmanager
    async def passing(self, who: str, size: int = HELD) -> AsyncIterator["Place"]:
        """Wait for a place and hold it while frames move."""
        place = await self.enter(who, size)
        try:
            yield place
        finally:
            place.leave()

    async def take(self, who: str, size: int) -> None:
        """Wait for the caller's other transfers, then for a place."""
        line = self._lines.setdefault(who, _Line())
        line.length += 1
        try:
            await line.turn.acquire()
            try:
                await self._room.acquire(size)
            except BaseException:
                line.turn.release()
                raise
        except BaseException:
            self._shorten(who)
            raise

    def give_back(self, who: str, size: int) -> None:
        """Free a place; the caller's next transfer may now wait for one."""
        self._room.release(size)
        self._lines[who].turn.release()
        self._shorten(who)

    def _shorten(self, who: str) -> None:
        self._lines[who].length -= 1
        if not self._lines[who].length:
            del self._lines[who]


class Place:
    """A transfer's place at the gate: given up while the other side is slow, taken again when it is fast."""

    def __init__(self, gate: Gate, who: str, size: int) -> None:
        self._gate, self._who, self._size = gate, who, size
        # Whether frames are being processed: then the controller is the slow side.
        self.working: Callable[[], bool] = lambda: False
        # Called when the place is given to others: the transfer frees its memory.
        self.lost: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._moved = self._loop.time()
        self._held = False
        self._entering = asyncio.Lock()  # connections and offers of one transfer may enter at the same time
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> bool:
        """Whether the transfer has its place."""
        return self._held

    async def enter(self) -> None:
        """Wait for the place, unless the transfer has it."""
        async with self._entering:
            if not self._held:
                await self._gate.take(self._who, self._size)
                self._held = True
                self._moved = self._loop.time()
                self._timer = self._loop.call_later(SLOW, self._check_pace)

    async def moved(self) -> None:
        """Note that a frame has moved; wait for the place if it was given up and frames move fast again."""
        pause = self._loop.time() - self._moved
        self._moved = self._loop.time()
        if not self._held and pause < SLOW:
            await self.enter()

    def leave(self) -> None:
        """Give the place to the next transfer."""
        if self._held:
            self._held = False
            if self._timer:
                self._timer.cancel()
            self._gate.give_back(self._who, self._size)

    def _check_pace(self) -> None:
        if self.working():
            self._moved = self._loop.time()
        left = self._moved + SLOW - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_pace)
        else:
            self.leave()
            self.lost()
