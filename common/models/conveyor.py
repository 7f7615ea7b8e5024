"""Hands items from the event loop to a worker thread in batches: a hop between threads is expensive."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

BATCH = 4  # items that are worked on together, and that may wait meanwhile


class Conveyor(Generic[T]):
    """Passes on items in order, a batch at a time; `put` waits while the next batch is full."""

    def __init__(self, work: Callable[[deque[T]], Awaitable[None]]) -> None:
        # It removes finished items from the batch, so that it can be called again after a failure.
        self._work = work
        self._waiting: deque[T] = deque()
        self._busy: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a batch is under way."""
        return self._busy is not None and not self._busy.done()

    @property
    def waiting(self) -> int:
        """How many items wait for the batch under way."""
        return len(self._waiting)

    async def put(self, item: T) -> None:
        """Add an item; raise what the worker raised."""
        while len(self._waiting) >= BATCH:
            await self._proceed()
        self._waiting.append(item)

    def hasten(self) -> None:
        """Start the waiting items, if nothing is under way: the next item may be long in coming."""
        failed = self._busy and self._busy.done() and (self._busy.cancelled() or self._busy.exception())
        if self._waiting and not self.busy and not failed:
            self._begin()

    async def rest(self) -> deque[T]:
        """Wait for the batch under way, raise what the worker raised, and return the items that wait."""
        while self.busy:
            await self._proceed()
        self._raise_failure()
        left, self._waiting = self._waiting, deque()
        return left

    async def drain(self) -> None:
        """Return when everything is done; raise what the worker raised."""
        while self.busy or self._waiting:
            await self._proceed()
        self._raise_failure()

    async def settle(self) -> None:
        """Return when everything is done or has failed."""
        try:
            await self.drain()
        except Exception:  # callers of `put` and `drain` see it
            self._waiting.clear()

    async def _proceed(self) -> None:
        """Wait for the batch under way or, if there is none, begin the next."""
        if self._busy and not self._busy.done():
            await asyncio.wait([self._busy])  # cancelling our caller does not cancel the worker
            return
        self._raise_failure()
        self._begin()

    def _begin(self) -> None:
        batch, self._waiting = self._waiting, deque()
        self._busy = asyncio.ensure_future(self._work(batch))

    def _raise_failure(self) -> None:
        if self._busy:
            self._busy.result()
