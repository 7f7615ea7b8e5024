"""Worker threads: everything that blocks or computes runs here and not in the event loop."""

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
    """One pool for the store, one for arithmetic, and one thread for the journal."""

    def __init__(self, trouble_changed: Callable[[], None] = lambda: None) -> None:
        self._trouble_changed = trouble_changed  # called when the store becomes unusable or usable again
        self._waiting: dict[object, str] = {}  # what is waiting for the store, and why
        self._io = ThreadPoolExecutor(max(8, 2 * (os.cpu_count() or 1)), thread_name_prefix="io")
        self._journal = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self.arithmetic = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="arithmetic")

    @property
    def trouble(self) -> str:
        """Why the store cannot be used right now; empty if nothing is waiting for it."""
        return next(iter(self._waiting.values()), "")

    def tell(self, who: object, why: str) -> None:
        """Note that something is waiting for the store, and why; an empty reason says that it is not."""
        if why:
            first = not self._waiting
            self._waiting[who] = why
            if first:
                log.error("waiting for the store: %s", why)
                self._trouble_changed()
        elif self._waiting.pop(who, "") and not self._waiting:
            log.info("the store can be used again")
            self._trouble_changed()

    async def io(self, work: Callable[..., T], *args: object) -> T:
        """Run something that reads or writes the store; it is run again while the store is unavailable."""
        return await self._insist(self._io, work, *args)

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run arithmetic over stored models; it is run again while the store is unavailable."""
        return await self._insist(self.arithmetic, work, *args)

    async def journal(self, work: Callable[..., T], *args: object) -> T:
        """Run something that reads or writes the journal: one call at a time, in order."""
        return await self._insist(self._journal, work, *args)

    async def _insist(self, pool: Executor, work: Callable[..., T], *args: object) -> T:
        """Run work on a thread. While the store is unavailable or full, wait and try again."""
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
        """Begin to read from the store, without trying again if the store is unavailable."""
        return asyncio.get_running_loop().run_in_executor(self._io, work)

    def close(self) -> None:
        """Wait for running work and end the threads."""
        for pool in (self._io, self._journal, self.arithmetic):
            pool.shutdown(wait=True, cancel_futures=True)
