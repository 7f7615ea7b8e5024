"""Slows training down, so that fast and slow sites can be tried out on one machine."""

import time
from collections.abc import Callable
from threading import Event

from hansa.common.values.errors import HansaError


class Cancelled(HansaError):
    """The task was withdrawn while it ran."""


def require_wanted(cancelled: Callable[[], bool]) -> None:
    """Raise Cancelled if a task was withdrawn."""
    if cancelled():
        raise Cancelled("the task was withdrawn")


class Drag:
    """Makes training take `factor` times as long, by resting in proportion to the work done.

    The training loop calls it before each batch to ask whether its task was withdrawn; it rests, then
    answers.
    """

    def __init__(self, factor: float, cancelled: Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._factor = factor
        self._cancelled = cancelled
        self._clock = clock
        self._since = clock()

    def __call__(self) -> bool:
        """Rest, then return whether the task was withdrawn."""
        self.rest()
        return self._cancelled.is_set()

    def rest(self) -> None:
        """Rest for the work done since the last rest; a withdrawal ends it."""
        if self._factor > 1:
            worked = self._clock() - self._since
            self._cancelled.wait(worked * (self._factor - 1))
            self._since = self._clock()
