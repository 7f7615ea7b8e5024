"""Pauses between tries to reach somebody who does not answer."""

import asyncio
import random
from contextlib import suppress

FIRST_PAUSE = 0.1
# The longest pause while there is hope that it is a restart, and for how many tries.
QUICK_PAUSE, QUICK_TRIES = 1.0, 60
LONGEST_PAUSE = 10.0


class Backoff:
    """Pauses that stay below a second for the first tries, for most outages are restarts, and then grow to a limit.

    There is some chance in them, so that sites do not return in step.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._failures = 0

    @property
    def patient(self) -> bool:
        """Whether so many tries have failed that the next ones need not hurry."""
        return self._failures >= QUICK_TRIES

    def reset(self) -> None:
        """Begin again with short pauses."""
        self._pause, self._failures = FIRST_PAUSE, 0

    def pause(self) -> float:
        """Take note of a failure; return how many seconds to wait before the next try."""
        pause = self._pause
        self._failures += 1
        self._pause = min(2 * pause, LONGEST_PAUSE if self.patient else QUICK_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311

    async def rest(self, until: asyncio.Event | None = None) -> None:
        """Take note of a failure and sleep before the next try, or until something makes it worth while."""
        pause = self.pause()
        if until is None:
            await asyncio.sleep(pause)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), pause)
