"""An event loop in a thread of its own, for callers that do not await: scripts and notebooks."""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from hansa.common.values.errors import InvalidInput, Refused

T = TypeVar("T")
Calls = set[Future[Any]]  # what is under way for one holder of the loop
CLOSED = "the client was closed meanwhile; make another one"
FORKED = (
    "this process was forked from one that has a client, and gRPC does not work in it; start it by"
    " multiprocessing.get_context('spawn'), or use threads"
)


class Loop:
    """A loop that runs while somebody holds it. gRPC wants one for a process, so all clients share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forked = False  # from a process whose loop was running: its thread is not here
        os.register_at_fork(after_in_child=self._fork)

    def _fork(self) -> None:
        self._lock = threading.Lock()
        self._forked = self._forked or self._loop is not None

    def hold(self) -> None:
        """Keep the loop running, until `release`."""
        if self._forked:
            raise Refused(FORKED)
        with self._lock:
            self._holders += 1
            if self._loop is None:
                loop = asyncio.new_event_loop()
                # A notebook or script that does not close its client can still end.
                thread = threading.Thread(target=loop.run_forever, name="hansa-client", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread

    def release(self, last: Callable[[], Coroutine[Any, Any, None]], calls: Calls) -> None:
        """End a holder's `calls`, do a `last` thing, and let the loop end when nobody holds it any more."""
        if self._forked:
            return
        for call in tuple(calls):
            call.cancel()  # other threads may wait for them
        if threading.current_thread() is self._thread:  # collected as garbage, by the loop itself
            asyncio.get_running_loop().create_task(last())
            return
        self.run(last(), calls)
        with self._lock:
            self._holders -= 1
            if self._holders or self._loop is None or self._thread is None:
                return
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        asyncio.run_coroutine_threadsafe(_finish(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def run(self, work: Coroutine[Any, Any, T], calls: Calls) -> T:
        """Run a coroutine on the loop and return its result; Ctrl-C cancels it."""
        future = self._begin(work, calls)
        try:
            return future.result()
        except CancelledError:
            raise InvalidInput(CLOSED) from None
        finally:
            future.cancel()

    def iterate(self, make: Callable[[], AsyncIterator[T]], calls: Calls) -> Iterator[T]:
        """Yield what an asynchronous iterator yields, which is closed when the caller stops early."""
        arrived: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()

        async def pump() -> None:
            async for each in make():
                arrived.put((each,))

        future = self._begin(pump(), calls)
        future.add_done_callback(lambda _: arrived.put(None))
        try:
            while (item := arrived.get()) is not None:
                yield item[0]
            future.result()
        except CancelledError:
            raise InvalidInput(CLOSED) from None
        finally:
            future.cancel()

    def _begin(self, work: Coroutine[Any, Any, T], calls: Calls) -> Future[T]:
        with self._lock:
            if self._forked or self._loop is None:
                work.close()
                raise Refused(FORKED) if self._forked else InvalidInput(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        calls.add(future)
        future.add_done_callback(calls.discard)
        return future


async def _finish() -> None:
    """Wait for the end of all that still runs on this loop."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


SHARED = Loop()
