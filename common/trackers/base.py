"""The contract of a tracker, and how it follows a job without repeats after an interruption."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Self

from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView


class Tracker(ABC):
    """Takes the versions of one job in order. It blocks; exports call it on one thread."""

    @abstractmethod
    def open(self, job: JobView) -> int:
        """Get ready for a job, and return the newest of its versions that is exported already; -1: none."""

    @abstractmethod
    def take(self, version: VersionView) -> None:
        """Export a version, so that the next `open` knows of it."""

    def finish(self, job: JobView) -> None:  # noqa: B027 - not every tracker has a place for it
        """Note how the job ended."""

    def close(self) -> None:  # noqa: B027 - not every tracker keeps something open
        """Let go of files and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def site_numbers(version: VersionView) -> dict[str, dict[str, float]]:
    """Return the numbers of each site that contributed to a version: those of its last update."""
    numbers: dict[str, dict[str, float]] = {}
    for site, update in version.sites.items():
        known: dict[str, float | None] = {
            **update.metrics,
            "loss": update.loss,
            "weight": update.weight,
            "examples": update.examples,
            "steps": update.steps,
            "seconds": update.seconds,
            "bytes_up": update.bytes_up,
            "staleness": update.staleness[0],
        }
        numbers[site] = {name: float(value) for name, value in known.items() if value is not None}
    return numbers


def pooled_numbers(version: VersionView) -> dict[str, float]:
    """Return a version's numbers: its metrics, on how many examples, and its traffic."""
    known: dict[str, float | None] = {
        **version.metrics,
        "examples": version.examples or None,
        "updates": len(version.updates),
        "bytes_up": version.bytes_up,
        "bytes_down": version.bytes_down,
        "seconds": version.seconds,
        "distance": version.distance,
    }
    if version.test is not None:
        known |= {f"test_{name}": value for name, value in version.test.metrics.items()}
    return {name: float(value) for name, value in known.items() if value is not None}


async def exported(versions: AsyncIterator[VersionView], tracker: Tracker) -> int:
    """Export versions as they come, and return how many they were."""
    count = 0
    async for version in versions:
        await asyncio.to_thread(tracker.take, version)
        count += 1
    return count
