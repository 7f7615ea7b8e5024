"""Worker threads: everything that blocks or computes leaves the event loop and comes back as a result."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from hansa.common.values.errors import StoreFailed

log = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class Workers:
    """One pool for store I/O, one for arithmetic, one thread for the journal."""

    def __init__(self, turned: Callable[[], None] = lambda: None) -> None:
        self._turned = turned  # called when the store can no longer be used, and when it can again
        self._waiting: dict[object, str] = {}  # what waits for the store, and why
        self._io = ThreadPoolExecutor(max(8, 2 * (os.cpu_count() or 1)), thread_name_prefix="io")
        self._journal = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self.arithmetic = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="arithmetic")

    @property
    def trouble(self) -> str:
        """Why the store cannot be used just now; empty if nothing waits for it."""
        return next(iter(self._waiting.values()), "")

    def tell(self, who: object, why: str) -> None:
        """Note that something waits for the store, and why; without a reason, that it no longer waits."""
        if why:
            first = not self._waiting
            self._waiting[who] = why
            if first:
                log.error("waiting: %s", why)
                self._turned()
        elif self._waiting.pop(who, "") and not self._waiting:
            log.info("nothing waits for the store any more")
            self._turned()

    async def io(self, work: Callable[..., T], *args: object) -> T:
        """Run something that reads or writes the store; it may be run again if the store was away."""
        return await self._insist(self._io, work, *args)

    async def journal(self, work: Callable[..., T], *args: object) -> T:
        """Run something that reads or writes the journal; one at a time, in order."""
        return await self._insist(self._journal, work, *args)

    async def _insist(self, pool: Executor, work: Callable[..., T], *args: object) -> T:
        """Run work on a thread. While the store fails (away, full), wait and try again; `trouble` says why."""
        pause, waiting = FIRST_PAUSE, object()
        try:
            while True:
                try:
                    return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
                except StoreFailed as error:
                    self.tell(waiting, str(error))
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self.tell(waiting, "")

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin to read from the store, once: the caller is told if the store is away."""
        return asyncio.get_running_loop().run_in_executor(self._io, work)

    def close(self) -> None:
        """Wait for running work and end the threads."""
        for pool in (self._io, self._journal, self.arithmetic):
            pool.shutdown(wait=True, cancel_futures=True)
