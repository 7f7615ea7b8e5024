"""The journal in an SQLite file: a write-ahead log, synced at each append."""

import sqlite3
from pathlib import Path

from hansa.common.errors import Broken, StoreFailed
from hansa.common.ids import JobId
from hansa.controller.journal.base import JobRecord, Journal

SCHEMA = 1
TABLES = """
create table if not exists jobs (id text primary key, spec text not null, at real not null);
create table if not exists events (
    job text not null, sequence integer not null, event text not null, primary key (job, sequence)
) without rowid;
"""


class SqliteJournal(Journal):
    """One file for all jobs of a controller."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            found = self._db.execute("pragma user_version").fetchone()[0]
            if found > SCHEMA:
                raise Broken(f"{path} was written by a newer Hansa (format {found}, this one knows {SCHEMA})")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")  # durable before it is acknowledged, also when power fails
            self._db.executescript(TABLES)
            self._db.execute(f"pragma user_version = {SCHEMA}")
        except sqlite3.Error as error:
            raise StoreFailed(f"journal {path}: {error}") from error

    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""
        self._write("insert or ignore into jobs values (?, ?, ?)", (record.id, record.spec, record.at))

    def append(self, job: JobId, sequence: int, event: str) -> None:
        """Append event number `sequence`; repeating the same event is harmless."""
        held = self._db.execute("select event from events where job = ? and sequence = ?", (job, sequence)).fetchone()
        if held:
            if held[0] != event:
                raise Broken(f"job {job}: event {sequence} is in the journal already, with other contents")
            return
        last = self._db.execute("select max(sequence) from events where job = ?", (job,)).fetchone()[0] or 0
        if sequence != last + 1:
            raise Broken(f"job {job}: event {sequence} would follow event {last}")
        self._write("insert into events values (?, ?, ?)", (job, sequence, event))

    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        rows = self._db.execute("select id, spec, at from jobs order by at, rowid").fetchall()
        return [JobRecord(JobId(job), spec, at) for job, spec, at in rows]

    def events(self, job: JobId) -> list[str]:
        """Return a job's events in order."""
        rows = self._db.execute("select event from events where job = ? order by sequence", (job,)).fetchall()
        return [event for (event,) in rows]

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreFailed(f"journal: {error}") from error
