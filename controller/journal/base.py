"""The contract of a journal. Methods block; the controller calls them from one worker thread."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hansa.common.errors import Broken
from hansa.common.ids import JobId


@dataclass(frozen=True)
class JobRecord:
    """A job as it was submitted."""

    id: JobId
    spec: str  # JSON
    at: float  # seconds since the epoch


@dataclass(frozen=True)
class Entry:
    """One event of a job, and the receipt it gave rise to (empty if none)."""

    sequence: int  # from 1, without gaps
    event: str  # JSON
    receipt: str = ""  # JSON


class Journal(ABC):
    """An append-only list of entries per job. What is appended is durable when `append` returns."""

    @abstractmethod
    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""

    @abstractmethod
    def append(self, job: JobId, entry: Entry) -> None:
        """Append an entry; repeating the last one is harmless, a gap or a conflict raises Broken."""

    @abstractmethod
    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""

    @abstractmethod
    def entries(self, job: JobId, after: int = 0) -> list[Entry]:
        """Return a job's entries in order, those with a higher number than `after`."""

    @abstractmethod
    def save_snapshot(self, job: JobId, sequence: int, snapshot: str) -> None:
        """Keep a job's state as of an entry, instead of an older snapshot."""

    @abstractmethod
    def snapshot(self, job: JobId) -> tuple[int, str] | None:
        """Return the newest snapshot and the number of the entry it includes."""

    @abstractmethod
    def close(self) -> None:
        """Close the journal."""


def conflict(job: JobId, sequence: int) -> Broken:
    """Return the error for an entry that is there already, with other contents."""
    return Broken(f"job {job}: entry {sequence} is in the journal already, with other contents")


def gap(job: JobId, sequence: int, last: int) -> Broken:
    """Return the error for an entry that does not follow the last one."""
    return Broken(
        f"job {job}: entry {sequence} cannot follow entry {last}: the journal lost entries"
        if last < sequence
        else f"job {job}: entry {sequence} cannot follow entry {last}"
    )
