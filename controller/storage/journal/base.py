"""The contract of a journal. Methods block; the controller calls them from one worker thread."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3
from pydantic import ValidationError

from hansa.common.process.clock import is_time
from hansa.common.values.errors import Broken, one_line
from hansa.common.values.ids import JobId
from hansa.controller.values.snapshots import Snapshot


@dataclass(frozen=True)
class JobRecord:
    """A job as it was submitted."""

    id: JobId
    spec: str  # JSON
    at: float  # seconds since the epoch


@dataclass(frozen=True)
class Entry:
    """One event of a job, and its receipt (empty if it has none)."""

    sequence: int  # from 1, without gaps
    event: str  # JSON
    receipt: str = ""  # JSON
    sound: bool = True  # whether the event is the one that was appended


class Journal(ABC):
    """An append-only list of entries per job, until the job as a whole is forgotten.

    Entries are durable when `append` returns.

    Damage to one record does not affect the others. Each has a checksum, so that even a plausible wrong digit
    is noticed: a damaged entry is not `sound`, a damaged record of a job cannot be decoded, and reading a
    damaged snapshot raises Broken. Receipts have hashes of their own. A checksum is not a seal: anybody who
    can write the journal can write it, too.
    """

    @abstractmethod
    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the journal already has the same record."""

    @abstractmethod
    def append(self, job: JobId, entries: Sequence[Entry]) -> None:
        """Append consecutive entries, all or none.

        Repeating entries is harmless; a gap or a conflict raises Broken.
        """

    @abstractmethod
    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""

    @abstractmethod
    def job(self, job: JobId) -> JobRecord | None:
        """Return a job as it was submitted, if the journal has it."""

    @abstractmethod
    def conclude(self, job: JobId, summary: str) -> None:
        """Keep the summary of an ended job, so that the job can be listed without reading its entries."""

    @abstractmethod
    def summaries(self) -> dict[JobId, str]:
        """Return all summaries except damaged ones, which can be made again from entries."""

    @abstractmethod
    def entries(self, job: JobId, after: int = 0, most: int | None = None) -> list[Entry]:
        """Return a job's entries with a higher number than `after`, in order; at most the first so many."""

    @abstractmethod
    def save_snapshot(self, job: JobId, snapshot: Snapshot) -> None:
        """Replace a job's snapshot by a newer one, which has only new chapters: all of it or nothing."""

    @abstractmethod
    def snapshot(self, job: JobId) -> Snapshot | None:
        """Return the newest snapshot with all chapters, or raise Broken if it is damaged.

        A damaged snapshot can be made again from entries.
        """

    @abstractmethod
    def forget(self, job: JobId) -> bool:
        """Remove a part of all that is known of a job and give its space back; return whether more is left.

        The job's record goes last, so a job that is not yet forgotten is still among `jobs`. Each call takes
        a moment, so that others get a turn in between. Repeating it is harmless.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the journal."""


def checksum(*parts: object) -> str:
    """Return a record's checksum; its parts include its place, so that it does not fit any other record."""
    hasher = blake3()
    for part in parts:
        text = str(part).encode()
        hasher.update(b"%d:%s" % (len(text), text))
    return hasher.hexdigest(8)


def checksum_of(record: JobRecord) -> str:
    """Return the checksum that is stored with a job's record."""
    return checksum(record.id, record.spec, float(record.at))


def sound(record: JobRecord, stored: object) -> JobRecord:
    """Return a job's record if it fits the stored checksum, else an empty one, which cannot be decoded."""
    if isinstance(record.spec, str) and is_time(record.at) and checksum_of(record) == stored:
        return record
    return JobRecord(record.id, "", 0.0)


def damaged_snapshot(job: JobId, why: str = "its checksum is wrong") -> Broken:
    """Return the error for a snapshot that cannot be used."""
    return Broken(f"the snapshot of job {job} is damaged: {why}")


def fault(error: Exception) -> str:
    """Say in a few words why a record cannot be read."""
    if not isinstance(error, ValidationError):
        return one_line(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def missing(job: JobId, entries: Sequence[Entry], present: Sequence[Entry], last: int) -> Sequence[Entry]:
    """Return the new entries that a journal lacks; `present` are those it has, from the first number on."""
    first = entries[0].sequence
    if first < 1 or last < first - 1 or len(present) > len(entries):
        raise gap(job, first, last)
    for old, new in zip(present, entries, strict=False):
        if old != new:
            raise conflict(job, new.sequence)
    return entries[len(present) :]


def conflict(job: JobId, sequence: int) -> Broken:
    """Return the error for an entry that the journal already has, with other contents."""
    return Broken(f"job {job}: the journal already has entry {sequence}, with other contents")


def gap(job: JobId, sequence: int, last: int) -> Broken:
    """Return the error for an entry that does not follow the last one."""
    lost = ": the journal lost entries; was it restarted empty?" if last < sequence else ""
    return Broken(f"job {job}: entry {sequence} cannot follow entry {last}{lost}")
