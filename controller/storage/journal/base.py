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
    """One event of a job, and the receipt it gave rise to (empty if none)."""

    sequence: int  # from 1, without gaps
    event: str  # JSON
    receipt: str = ""  # JSON
    sound: bool = True  # the event is what was appended


class Journal(ABC):
    """An append-only list of entries per job. What is appended is durable when `append` returns.

    Damage to one record is no matter to the others. Each is kept with a checksum, so that even a plausible
    wrong digit is found: the event of an entry is not `sound`, a job's record cannot be decoded, a snapshot
    raises Broken. Receipts have hashes of their own. A checksum is no seal: whoever can write the journal can
    write it, too.
    """

    @abstractmethod
    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""

    @abstractmethod
    def append(self, job: JobId, entries: Sequence[Entry]) -> None:
        """Append consecutive entries, all or none; repeating them is harmless, a gap or a conflict raises Broken."""

    @abstractmethod
    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""

    @abstractmethod
    def job(self, job: JobId) -> JobRecord | None:
        """Return a job as it was submitted, if it is there."""

    @abstractmethod
    def conclude(self, job: JobId, summary: str) -> None:
        """Keep a summary of an ended job, with which it can be listed without its entries."""

    @abstractmethod
    def summaries(self) -> dict[JobId, str]:
        """Return all summaries; damaged ones are left out: they can be made again from entries."""

    @abstractmethod
    def entries(self, job: JobId, after: int = 0) -> list[Entry]:
        """Return a job's entries in order, those with a higher number than `after`."""

    @abstractmethod
    def save_snapshot(self, job: JobId, snapshot: Snapshot) -> None:
        """Keep a job's state instead of an older one, with those chapters of its history that are new: all or none."""

    @abstractmethod
    def snapshot(self, job: JobId) -> Snapshot | None:
        """Return the newest snapshot with all chapters; Broken if it is damaged: it can be made again from entries."""

    @abstractmethod
    def close(self) -> None:
        """Close the journal."""


def checksum(*parts: object) -> str:
    """Return what changes with every damage to a record; among its parts is its place, so that it fits no other."""
    hasher = blake3()
    for part in parts:
        text = str(part).encode()
        hasher.update(b"%d:%s" % (len(text), text))
    return hasher.hexdigest(8)


def checksum_of(record: JobRecord) -> str:
    """Return the checksum that a job's record is kept with."""
    return checksum(record.id, record.spec, float(record.at))


def sound(record: JobRecord, kept: object) -> JobRecord:
    """Return a job's record; of one that is not what its checksum was made of, nothing that can be taken for a job."""
    if isinstance(record.spec, str) and is_time(record.at) and checksum_of(record) == kept:
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


def missing(job: JobId, entries: Sequence[Entry], held: Sequence[Entry], last: int) -> Sequence[Entry]:
    """Return those of some new entries that a journal lacks. `held` are those from the first new number on."""
    first = entries[0].sequence
    if first < 1 or last < first - 1 or len(held) > len(entries):
        raise gap(job, first, last)
    for old, new in zip(held, entries, strict=False):
        if old != new:
            raise conflict(job, new.sequence)
    return entries[len(held) :]


def conflict(job: JobId, sequence: int) -> Broken:
    """Return the error for an entry that is there already, with other contents."""
    return Broken(f"job {job}: entry {sequence} is in the journal already, with other contents")


def gap(job: JobId, sequence: int, last: int) -> Broken:
    """Return the error for an entry that does not follow the last one."""
    return Broken(
        f"job {job}: entry {sequence} cannot follow entry {last}: the journal lost entries; was it restarted empty?"
        if last < sequence
        else f"job {job}: entry {sequence} cannot follow entry {last}"
    )
