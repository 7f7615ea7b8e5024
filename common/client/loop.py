"""An event loop in a thread of its own, for callers that do not await: scripts and notebooks."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class Loop:
    """A loop that runs while somebody holds it. gRPC wants one for a process, so all clients share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def hold(self) -> None:
        """Keep the loop running, until `release`."""
        with self._lock:
            self._holders += 1
            if self._loop is None:
                loop = asyncio.new_event_loop()
                # A notebook or script that does not close its client can still end.
                thread = threading.Thread(target=loop.run_forever, name="hansa-client", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread

    def release(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a `last` thing on the loop, and let it end when nobody holds it any more."""
        if threading.current_thread() is self._thread:  # collected as garbage, by the loop itself
            asyncio.get_running_loop().create_task(last())
            return
        self.run(last())
        with self._lock:
            self._holders -= 1
            if self._holders or self._loop is None or self._thread is None:
                return
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result; Ctrl-C cancels it."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Yield what an asynchronous iterator yields, which is closed when the caller stops early."""
        assert self._loop is not None
        arrived: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for each in make():
                    arrived.put((each,))
            finally:
                arrived.put(None)

        future = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (item := arrived.get()) is not None:
                yield item[0]
            future.result()
        finally:
            future.cancel()


SHARED = Loop()
