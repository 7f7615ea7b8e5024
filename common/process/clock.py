"""Time, handed in: the controller asks a Clock, and tests give it one they can turn."""

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Protocol

log = logging.getLogger(__name__)
LATEST = 253_402_300_800.0  # the end of the year 9999


class Clock(Protocol):
    """What the controller knows of time."""

    def now(self) -> float:
        """Return seconds since the epoch; never less than it returned before."""

    def catch_up(self, at: float) -> None:
        """Take note of a time that has been: `now()` does not return less any more."""

    async def sleep_until(self, at: float) -> None:
        """Return when `now()` has reached `at`."""


class SystemClock:
    """The machine's clock, kept from going backwards."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return seconds since the epoch as of start, plus what the monotonic clock has counted since."""
        return self._offset + time.monotonic()

    def catch_up(self, at: float) -> None:
        """Go on from `at` if the machine's clock was set back while we were not running: deadlines depend on it."""
        behind = at - self.now()
        if behind > 0:
            self._offset += behind
            if behind > 1:
                log.warning(
                    "the clock of this machine was set back by %.0f s; times go on from the journal's", behind
                )

    async def sleep_until(self, at: float) -> None:
        """Sleep; the monotonic clock decides."""
        await asyncio.sleep(max(0.0, at - self.now()))


def is_time(at: object) -> bool:
    """Whether something that was stored can be a time: a damaged one would set the clock for everybody."""
    return isinstance(at, int | float) and 0 <= at < LATEST


def iso(at: float) -> str:
    """Write a time for people and programs."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
