"""Waiting for what cannot wake a test: another process, a thread, a file, the far end of a connection.

Only here do tests sleep. What can be awaited (an event, a change of a job, the end of a process) is awaited.
"""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PAUSE = 0.01  # seconds between two questions
LATE = "it did not happen in time"


def until(ask: Callable[[], T], seconds: float = 30, otherwise: str | Callable[[], str] = LATE) -> T:
    """Return the first answer that is true; fail with a message if there is none in time."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < end, otherwise() if callable(otherwise) else otherwise
        time.sleep(PAUSE)
    return answer


async def eventually(ask: Callable[[], object], seconds: float = 20) -> Any:
    """Return the first answer that is true, while the event loop goes on; fail if there is none in time."""
    end = time.monotonic() + seconds
    while True:
        answer = ask()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < end, LATE
        await asyncio.sleep(PAUSE)
