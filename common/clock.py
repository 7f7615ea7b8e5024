"""Time, handed in: the controller asks a Clock, and tests give it one they can turn."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the controller knows of time."""

    def now(self) -> float:
        """Return seconds since the epoch; never less than it returned before."""

    async def sleep_until(self, at: float) -> None:
        """Return when `now()` has reached `at`."""


class SystemClock:
    """The machine's clock, kept from going backwards."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return seconds since the epoch as of start, plus what the monotonic clock has counted since."""
        return self._offset + time.monotonic()

    async def sleep_until(self, at: float) -> None:
        """Sleep; the monotonic clock decides."""
        await asyncio.sleep(max(0.0, at - self.now()))


def iso(at: float) -> str:
    """Write a time for people and programs."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
