"""A machine that is slower than it is, so that fast and slow sites can be tried on one machine."""

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
    """Makes training take `factor` times as long: whenever it is asked, it rests in proportion to the work since.

    The training loop asks before each batch whether its task was withdrawn, and this is who answers.
    """

    def __init__(self, factor: float, cancelled: Event) -> None:
        self._factor = factor
        self._cancelled = cancelled
        self._since = time.monotonic()

    def __call__(self) -> bool:
        """Rest, then say whether the task was withdrawn."""
        self.rest()
        return self._cancelled.is_set()

    def rest(self) -> None:
        """Rest for the work done since the last rest; a withdrawal ends it."""
        if self._factor > 1:
            worked = time.monotonic() - self._since
            self._cancelled.wait(worked * (self._factor - 1))
            self._since = time.monotonic()
