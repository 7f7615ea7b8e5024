"""Pauses between attempts to reach a peer that does not answer."""

import asyncio
import random
from contextlib import suppress

FIRST_PAUSE = 0.1
# The longest pause of the first tries, in case the peer is only restarting, and the number of such tries.
QUICK_PAUSE, QUICK_TRIES = 1.0, 60
LONGEST_PAUSE = 10.0


class Backoff:
    """Pauses that stay short at first, because most outages are restarts, and then grow to a limit.

    They are random within bounds, so that sites do not return in step.
    """

    def __init__(self) -> None:
        self._chance = random.Random()  # noqa: S311 - not the shared generator: apps draw from that
        self._pause = FIRST_PAUSE
        self._failures = 0

    @property
    def patient(self) -> bool:
        """Whether so many tries have failed that the next ones need not hurry."""
        return self._failures >= QUICK_TRIES

    def reset(self) -> None:
        """Start again with short pauses."""
        self._pause, self._failures = FIRST_PAUSE, 0

    def pause(self) -> float:
        """Count a failure; return how many seconds to wait before the next try."""
        pause = self._pause
        self._failures += 1
        self._pause = min(2 * pause, LONGEST_PAUSE if self.patient else QUICK_PAUSE)
        return pause * self._chance.uniform(0.5, 1.0)

    async def rest(self, until: asyncio.Event | None = None) -> None:
        """Count a failure and sleep before the next try, or until an event makes it worthwhile."""
        pause = self.pause()
        if until is None:
            await asyncio.sleep(pause)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), pause)
