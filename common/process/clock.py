"""Time is handed in: the controller asks a Clock, and tests give it one that they can set."""

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Protocol

log = logging.getLogger(__name__)
LATEST = 253_402_300_800.0  # the end of the year 9999


class Clock(Protocol):
    """The controller's source of time."""

    def now(self) -> float:
        """Return seconds since the epoch; never less than before."""

    def catch_up(self, at: float) -> None:
        """Take note of a past time: from now on `now()` never returns less."""

    async def sleep_until(self, at: float) -> None:
        """Return when `now()` has reached `at`."""


class SystemClock:
    """The machine's clock, kept from going backwards."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return seconds since the epoch: the time of the start plus the monotonic clock's time since."""
        return self._offset + time.monotonic()

    def catch_up(self, at: float) -> None:
        """Continue from `at` if the machine's clock was set back meanwhile: deadlines depend on it."""
        behind = at - self.now()
        if behind > 0:
            self._offset += behind
            if behind > 1:
                log.warning(
                    "this machine's clock was set back by %.0f s; time continues from the journal's",
                    behind,
                )

    async def sleep_until(self, at: float) -> None:
        """Sleep; the monotonic clock decides."""
        await asyncio.sleep(max(0.0, at - self.now()))


def is_time(at: object) -> bool:
    """Whether a stored value can be a time: a damaged one would set the clock of the whole federation."""
    return isinstance(at, int | float) and 0 <= at < LATEST


def iso(at: float) -> str:
    """Write a time for people and programs."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
