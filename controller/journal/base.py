"""The contract of a journal. Methods block; the controller calls them from one worker thread."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hansa.common.ids import JobId


@dataclass(frozen=True)
class JobRecord:
    """A job as it was submitted."""

    id: JobId
    spec: str  # JSON
    at: float  # seconds since the epoch


class Journal(ABC):
    """An append-only list of events per job. What is appended is durable when `append` returns."""

    @abstractmethod
    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""

    @abstractmethod
    def append(self, job: JobId, sequence: int, event: str) -> None:
        """Append event number `sequence` (from 1, without gaps); repeating the same event is harmless."""

    @abstractmethod
    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""

    @abstractmethod
    def events(self, job: JobId) -> list[str]:
        """Return a job's events in order."""

    @abstractmethod
    def close(self) -> None:
        """Close the journal."""
