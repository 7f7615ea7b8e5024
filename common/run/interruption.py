"""Ctrl-C and SIGTERM: the first asks a command to end in order, the second to end at once."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The work was given up because of a signal."""


class Interruption:
    """Whether a command was asked to end, and asked again. Use it in the event loop's own thread."""

    def __init__(self) -> None:
        self.asked, self.again = asyncio.Event(), asyncio.Event()

    def listen(self) -> None:
        """Handle SIGINT and SIGTERM from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.again if self.asked.is_set() else self.asked).set()

    async def unless_asked(self, work: Coroutine[None, None, T]) -> T:
        """Do work that can be given up at any moment; raise Interrupted at the first signal."""
        return await _unless(self.asked, work)

    async def unless_again(self, work: Coroutine[None, None, T]) -> T:
        """Do work that is given up only at the second signal."""
        return await _unless(self.again, work)


async def _unless(event: asyncio.Event, work: Coroutine[None, None, T]) -> T:
    doing, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Interrupted
        return doing.result()
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
