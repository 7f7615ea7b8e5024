"""The journal in an SQLite file: a write-ahead log, synced at each append."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hansa.common.values.errors import Broken, StoreFailed
from hansa.common.values.ids import JobId
from hansa.controller.storage.journal.base import (
    Entry,
    JobRecord,
    Journal,
    checksum,
    checksum_of,
    damaged_snapshot,
    missing,
    sound,
)
from hansa.controller.values.snapshots import Snapshot

SCHEMA = 11
AT_ONCE = 2000  # entries that are removed, or pages that are given back, in one call
PASSING = {  # errors that may pass; all others, such as a damaged page, will not
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
TABLES = """
create table if not exists jobs (
    id text primary key, spec text not null, at real not null, checksum text not null
);
create table if not exists summaries (job text primary key, text text not null, checksum text not null);
create table if not exists entries (
    job text not null, sequence integer not null, event text not null, receipt text not null,
    checksum text not null, primary key (job, sequence)
) without rowid;
create table if not exists snapshots (
    job text primary key, sequence integer not null, state text not null, checksum text not null
);
create table if not exists chapters (
    job text not null, number integer not null, text text not null, checksum text not null,
    primary key (job, number)
);
"""


class SqliteJournal(Journal):
    """One file for all jobs of a controller."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self.db.text_factory = _text
            schema = self.db.execute("pragma user_version").fetchone()[0]
            if schema not in (0, SCHEMA):
                self.db.close()
                age = "a newer" if schema > SCHEMA else "an older"
                raise Broken(
                    f"{path} was written by {age} Hansa (format {schema}, this one knows {SCHEMA});"
                    " choose another --state"
                )
            self.db.execute("pragma auto_vacuum = incremental")  # works for a new file only
            self.db.execute("pragma journal_mode = wal")
            # An acknowledged entry must survive a power failure.
            self.db.execute("pragma synchronous = full")
            self.db.executescript(TABLES)
            self.db.execute(f"pragma user_version = {SCHEMA}")
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the journal already has the same record."""
        row = (record.id, record.spec, record.at, checksum_of(record))
        self._do("insert or ignore into jobs values (?, ?, ?, ?)", *row)

    def append(self, job: JobId, entries: Sequence[Entry]) -> None:
        """Append consecutive entries, all or none."""
        tail = self._do("select max(sequence) from entries where job = ?", job)
        last = tail[0][0] or 0
        present = self.entries(job, entries[0].sequence - 1) if last >= entries[0].sequence else []
        with self._transaction():
            for entry in missing(job, entries, present, last):
                row = (job, entry.sequence, entry.event, entry.receipt)
                check = checksum(job, entry.sequence, entry.event)
                self._do("insert into entries values (?, ?, ?, ?, ?)", *row, check)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        rows = self._do("select id, spec, at, checksum from jobs order by at, id")
        return [sound(JobRecord(JobId(job), spec, at), check) for job, spec, at, check in rows]

    def job(self, job: JobId) -> JobRecord | None:
        """Return a job as it was submitted, if the journal has it."""
        rows = self._do("select spec, at, checksum from jobs where id = ?", job)
        return sound(JobRecord(job, rows[0][0], rows[0][1]), rows[0][2]) if rows else None

    def conclude(self, job: JobId, summary: str) -> None:
        """Keep the summary of an ended job, so that the job can be listed without reading its entries."""
        self._do("insert or replace into summaries values (?, ?, ?)", job, summary, checksum(job, summary))

    def summaries(self) -> dict[JobId, str]:
        """Return all summaries except damaged ones."""
        rows = self._do("select job, text, checksum from summaries")
        return {JobId(job): text for job, text, check in rows if check == checksum(job, text)}

    def entries(self, job: JobId, after: int = 0, most: int | None = None) -> list[Entry]:
        """Return a job's entries with a higher number than `after`, in order; at most the first so many."""
        query = (
            "select sequence, cast(event as text), cast(receipt as text), checksum"
            " from entries where job = ? and sequence > ? order by sequence limit ?"
        )
        return [
            Entry(sequence, event, receipt, check == checksum(job, sequence, event))
            for sequence, event, receipt, check in self._do(query, job, after, -1 if most is None else most)
        ]

    def save_snapshot(self, job: JobId, snapshot: Snapshot) -> None:
        """Replace a job's snapshot by a newer one, which has only new chapters: all of it or nothing."""
        with self._transaction():
            row = (job, snapshot.sequence, snapshot.state, checksum(job, snapshot.sequence, snapshot.state))
            self._do("insert or replace into snapshots values (?, ?, ?, ?)", *row)
            for number, text in snapshot.chapters.items():
                row = (job, number, text, checksum(job, number, text))
                self._do("insert or replace into chapters values (?, ?, ?, ?)", *row)

    def snapshot(self, job: JobId) -> Snapshot | None:
        """Return the newest snapshot with all chapters."""
        rows = self._do("select sequence, state, checksum from snapshots where job = ?", job)
        chapters = self._do("select number, text, checksum from chapters where job = ? order by number", job)
        if any(check != checksum(job, number, text) for number, text, check in [*rows, *chapters]):
            raise damaged_snapshot(job)
        if not rows:
            return None
        return Snapshot(rows[0][0], rows[0][1], {number: text for number, text, _ in chapters})

    def forget(self, job: JobId) -> bool:
        """Remove a part of all that is known of a job, or give free pages back to the file system."""
        first = self._do("select min(sequence) from entries where job = ?", job)[0][0]
        if first is not None:
            self._do("delete from entries where job = ? and sequence < ?", job, first + AT_ONCE)
            return True
        with self._transaction():
            self._do("delete from chapters where job = ?", job)
            self._do("delete from snapshots where job = ?", job)
            self._do("delete from summaries where job = ?", job)
            self._do("delete from jobs where id = ?", job)
        self._do(f"pragma incremental_vacuum({AT_ONCE})")
        if self._do("pragma freelist_count")[0][0] and self._do("pragma auto_vacuum")[0][0]:
            return True
        self._do("pragma wal_checkpoint(truncate)")
        return False

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make all statements inside durable together, or none of them."""
        try:
            self._do("begin")
            yield
            self._do("commit")
        finally:
            if self.db.in_transaction:
                self._do("rollback")

    def _do(self, statement: str, *values: object) -> list[Any]:
        try:
            return self.db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _trouble(self, error: sqlite3.Error) -> Broken:
        """Return StoreFailed for an error that may pass (full, locked), else Broken."""
        passing = getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING  # the rest of the code is detail
        return (StoreFailed if passing else Broken)(f"journal {self._path}: {error}")


def _text(column: bytes) -> str:
    """Read text that may be damaged; decoding the entry shows that."""
    return column.decode(errors="replace")
