"""The journal in an SQLite file: a write-ahead log, synced at each append."""

import sqlite3
from pathlib import Path
from typing import Any

from hansa.common.errors import Broken, StoreFailed
from hansa.common.ids import JobId
from hansa.controller.journal.base import Entry, JobRecord, Journal, conflict, gap

SCHEMA = 1
TABLES = """
create table if not exists jobs (id text primary key, spec text not null, at real not null);
create table if not exists entries (
    job text not null, sequence integer not null, event text not null, receipt text not null,
    primary key (job, sequence)
) without rowid;
create table if not exists snapshots (job text primary key, sequence integer not null, snapshot text not null);
"""


class SqliteJournal(Journal):
    """One file for all jobs of a controller."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            found = self._db.execute("pragma user_version").fetchone()[0]
            if found > SCHEMA:
                self._db.close()
                raise Broken(f"{path} was written by a newer Hansa (format {found}, this one knows {SCHEMA})")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")  # durable before it is acknowledged, also when power fails
            self._db.executescript(TABLES)
            self._db.execute(f"pragma user_version = {SCHEMA}")
        except sqlite3.Error as error:
            raise StoreFailed(f"journal {path}: {error}") from error

    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""
        self._do("insert or ignore into jobs values (?, ?, ?)", record.id, record.spec, record.at)

    def append(self, job: JobId, entry: Entry) -> None:
        """Append an entry; repeating the same is harmless, a gap or a conflict raises Broken."""
        tail = self._do(
            "select sequence, event, receipt from entries where job = ? order by sequence desc limit 1", job
        )
        last = tail[0][0] if tail else 0
        if tail and last == entry.sequence:
            if tail[0][1:] != (entry.event, entry.receipt):
                raise conflict(job, entry.sequence)
            return
        if last != entry.sequence - 1 or entry.sequence < 1:
            raise gap(job, entry.sequence, last)
        self._do("insert into entries values (?, ?, ?, ?)", job, entry.sequence, entry.event, entry.receipt)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        rows = self._do("select id, spec, at from jobs order by at, id")
        return [JobRecord(JobId(job), spec, at) for job, spec, at in rows]

    def entries(self, job: JobId, after: int = 0) -> list[Entry]:
        """Return a job's entries in order, those with a higher number than `after`."""
        query = "select sequence, event, receipt from entries where job = ? and sequence > ? order by sequence"
        return [Entry(*row) for row in self._do(query, job, after)]

    def save_snapshot(self, job: JobId, sequence: int, snapshot: str) -> None:
        """Keep a job's state as of an entry, instead of an older snapshot."""
        self._do("insert or replace into snapshots values (?, ?, ?)", job, sequence, snapshot)

    def snapshot(self, job: JobId) -> tuple[int, str] | None:
        """Return the newest snapshot and the number of the entry it includes."""
        rows = self._do("select sequence, snapshot from snapshots where job = ?", job)
        return (rows[0][0], rows[0][1]) if rows else None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _do(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreFailed(f"journal: {error}") from error
