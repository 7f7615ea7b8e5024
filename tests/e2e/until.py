"""Waiting for other processes: they cannot wake a test, so it asks until the answer is true."""

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")
PAUSE = 0.05  # seconds between two questions
_NEVER = Event()


def until(
    ask: Callable[[], T],
    seconds: float = 30,
    otherwise: str | Callable[[], str] = "it did not happen in time",
) -> T:
    """Return the first answer that is true; fail with a message if there is none in time."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < end, otherwise() if callable(otherwise) else otherwise
        _NEVER.wait(PAUSE)
    return answer
