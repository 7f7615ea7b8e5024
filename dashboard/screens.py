"""What viewers look at: parts of a page that are drawn once for all of them, whenever what they show changes.

There are no queues. A viewer asks for the newest state, receives what differs from the state before, and
asks again; a slow browser skips the states between.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import html

SHARE = 5.0  # a part is drawn again when this many times the time of drawing it has passed


class Pulse:
    """Counts changes, and wakes those who wait for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def beat(self) -> None:
        """Tell of a change."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, count: int) -> None:
        """Return once there have been more changes than these."""
        while self.count <= count:
            await self._changed.wait()


@dataclass(frozen=True)
class Drawn:
    """A part of a page at some moment."""

    element: Element
    text: str
    count: int  # changes that it shows
    due: float  # when it may be drawn again


class Part:
    """A part of a page that is drawn at most every `pause` seconds, less often if it takes long."""

    def __init__(self, draw: Callable[[], Element], pause: float) -> None:
        self._draw, self._pause = draw, pause
        self._drawn: Drawn | None = None

    def at(self, count: int) -> Drawn:
        """Return the part after so many changes, or as it was before if it was drawn too recently."""
        drawn, begun = self._drawn, time.monotonic()
        if drawn and (drawn.count == count or begun < drawn.due):
            return drawn
        element = self._draw()
        text, done = html(element), time.monotonic()
        self._drawn = Drawn(element, text, count, done + max(self._pause, SHARE * (done - begun)))
        return self._drawn


class Screen:
    """The live parts of a page, by the ids of their elements."""

    def __init__(self, pulse: Pulse, parts: Mapping[str, Part]) -> None:
        self.pulse, self._parts = pulse, parts

    def drawn(self) -> dict[str, Drawn]:
        """Return all parts."""
        return {name: part.at(self.pulse.count) for name, part in self._parts.items()}

    async def changed(self, seen: Sequence[Drawn], longest: float) -> None:
        """Return when a part may differ from those seen, or after some seconds."""
        count, now = self.pulse.count, time.monotonic()
        stale = [max(part.due - now, 0.01) for part in seen if part.count < count]
        try:
            async with asyncio.timeout(min([longest, *stale])):
                await (asyncio.Event().wait() if stale else self.pulse.after(count))
        except TimeoutError:
            pass
