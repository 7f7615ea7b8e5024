"""What will happen in a simulation, in the order of virtual time.

Times are integers, nanoseconds from 0: sums of floats would break ties. Of two things that happen at the same
time, their kind decides first, then the site, then the task, then which was entered first.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Generic, TypeVar

SECOND = 1_000_000_000
ABSENT = -1  # in place of a site or task, for what has none
T = TypeVar("T")


class Rank(IntEnum):
    """What happens first at the same time. An update that arrives exactly at the deadline still counts."""

    ORDER = 0  # the result of a merge or an examination
    EPOCH = 1
    UPDATE = 2
    REPORT = 3
    FAILURE = 4
    LEAVE = 5
    JOIN = 6
    ALARM = 7


Key = tuple[int, int, int, int, int]  # time, rank, site, task, sequence


@dataclass
class Agenda(Generic[T]):
    """A heap of entries."""

    _heap: list[tuple[Key, T]] = field(default_factory=list)
    _entered: int = 0

    def enter(self, time: int, rank: Rank, what: T, site: int = ABSENT, task: int = ABSENT) -> None:
        """Enter something that will happen."""
        heappush(self._heap, ((time, rank, site, task, self._entered), what))
        self._entered += 1

    def pop(self) -> tuple[Key, T]:
        """Take the earliest entry."""
        return heappop(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)


def nanoseconds(seconds: float) -> int:
    """Return a time or a duration as an integer."""
    return round(seconds * SECOND)


def seconds(time: int) -> float:
    """Return a time as the engine counts it."""
    return time / SECOND
