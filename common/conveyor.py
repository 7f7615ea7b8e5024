"""From the event loop to a worker thread in batches: a hop between threads costs more than many a frame's work."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 4  # items that may wait while a batch is worked on


class Conveyor(Generic[T]):
    """Hands items on in order. While a batch is under way the next one gathers; `put` waits when it is full."""

    def __init__(self, work: Callable[[deque[T]], Awaitable[None]]) -> None:
        self._work = work  # takes what it has done from the batch, so that it can be called again after a failure
        self._waiting: deque[T] = deque()
        self._taken = asyncio.Event()
        self._busy: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a batch is under way."""
        return self._busy is not None and not self._busy.done()

    async def put(self, item: T) -> None:
        """Add an item; raise what the worker raised."""
        if len(self._waiting) >= MOST:
            self._taken.clear()
            await self._taken.wait()
        if self._busy and self._busy.done():
            self._busy.result()
        self._waiting.append(item)
        if not self.busy:
            self._busy = asyncio.create_task(self._run())

    async def drain(self) -> None:
        """Return when everything is done; raise what the worker raised."""
        if self._busy:
            await self._busy

    async def settle(self) -> None:
        """Return when everything is done or has failed."""
        if self._busy:
            await asyncio.wait([self._busy])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, deque()
                self._taken.set()
                await self._work(batch)
        finally:
            self._taken.set()
