"""Back-pressure: how many transfers move at once. The others wait at the gate; nobody is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STILL = 2.0  # seconds without a frame after which a transfer gives its place to others
PLACE = 64 << 20  # of the memory budget, for each place at a gate
FEWEST, MOST = 2, 8  # more than a few at once do not move more bytes


class Gate:
    """A gate with a few places. A transfer that stands still (a slow link) goes on without holding one."""

    def __init__(self, memory: int) -> None:
        self._places = asyncio.Semaphore(max(FEWEST, min(MOST, memory // PLACE)))

    async def enter(self) -> "Place":
        """Wait for a place; whoever enters must leave."""
        await self._places.acquire()
        return Place(self._places)

    @asynccontextmanager
    async def passing(self) -> AsyncIterator["Place"]:
        """Wait for a place and hold it while frames move."""
        place = await self.enter()
        try:
            yield place
        finally:
            place.leave()


class Place:
    """A place at the gate."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._held = True
        self._timer = asyncio.get_running_loop().call_later(STILL, self.leave)

    def moved(self) -> None:
        """Take note that a frame has moved."""
        if self._held:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(STILL, self.leave)

    @property
    def held(self) -> bool:
        """Whether the place is still ours."""
        return self._held

    def leave(self) -> None:
        """Give the place to the next."""
        if self._held:
            self._held = False
            self._timer.cancel()
            self._places.release()
