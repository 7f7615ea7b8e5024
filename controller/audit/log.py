"""The audit log, a chain of hashes in the journal: who did what, and who was refused.

Every record holds the hash of the one before. The record of a job's submission also holds the digest of the
job as it was submitted; the record of its end holds the hash of the job's newest receipt and the digest of
its whole journal. This ties the jobs to the chain. A later head reveals every change to the records before
it. There is no key: somebody who owns the disk can write a new chain, and only a head that is kept elsewhere
reveals that.

    submitted ──► the job is in the journal ──► accepted ──► the operator is told

A submission without `accepted` was interrupted: nobody was told about such a job, and it may be missing.
A job that was `deleted` is missing, too: the record holds the digest of the journal that is no longer there.
"""

import asyncio
import logging
from collections import Counter
from typing import Literal

from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, InvalidInput, reason
from hansa.common.values.ids import JobId
from hansa.common.values.wording.words import plain
from hansa.controller.audit.records import LOG, AuditRecord, What
from hansa.controller.storage.journal import Entry, Journal
from hansa.controller.values.snapshots import Snapshot
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)
MARK_EVERY = 500  # records between two marks; a start reads at most twice as many
QUIET = 60.0  # seconds in which the same refusal is recorded once
MOVES = 10  # comings, or goings, of one daemon that are recorded in that time
REFUSALS = 30  # different refusals of one caller that are recorded in that time: callers choose their words
REMEMBERED = 1000  # different things that happened recently
WAITING = 10_000  # notes that are not written yet; further notes that callers cause are not recorded


class Audit:
    """Writes the log. `record` waits until a record is durable; `note` does not wait."""

    def __init__(self, journal: Journal, workers: Workers, clock: Clock) -> None:
        self._journal, self._workers, self._clock = journal, workers, clock
        self._sequence, self._head = 0, ""
        self.interrupted: set[JobId] = set()  # jobs that were submitted recently and not accepted
        self.deleted: set[JobId] = set()  # jobs that were deleted recently, though perhaps not to the end
        self._since = 0.0  # the time from which on the ends of jobs are known
        self._ends: dict[JobId, str] = {}  # how jobs ended
        self._queue: asyncio.Queue[tuple[dict[str, str], asyncio.Future[None]] | None] = asyncio.Queue()
        self._written = asyncio.Event()
        self.counts: Counter[str] = Counter()  # records since the start, by what they are about
        self._recent: dict[tuple[str, str, str], tuple[float, int]] = {}  # first time, number of times

    async def open(self) -> str:
        """Find the end of the chain and the jobs that ended recently; return what the store has lost."""
        mark, entries = await self._tail()
        for entry in entries:
            try:
                record = AuditRecord.model_validate_json(entry.event)
            except ValueError:
                text = "record %d of the audit log is damaged; `hansa audit verify` shows details"
                log.warning(text, entry.sequence)
            else:
                self._head = record.hash
                self._since = self._since or (record.at if entry.sound else 0.0)
                self._ends |= {JobId(record.about): record.why} if record.what == "ended" else {}
                if record.what == "submitted":
                    self.interrupted.add(JobId(record.about))
                elif record.what == "accepted":
                    self.interrupted.discard(JobId(record.about))
                elif record.what == "deleted":
                    self.deleted.add(JobId(record.about))
            self._sequence = entry.sequence
        if mark is None or mark.sequence <= self._sequence:
            return ""
        lost = f"the store lost records {self._sequence + 1} to {mark.sequence} of the audit log, or more"
        log.error(lost)
        return lost

    async def _tail(self) -> tuple[Snapshot | None, list[Entry]]:
        """Return the newest mark and the records that a start must read: those since the mark before it."""
        try:
            mark = await self._workers.journal(self._journal.snapshot, LOG)
        except Broken as error:
            log.warning("the audit log is read from its first record: %s", error)
            mark = None
        first = max(0, mark.sequence - MARK_EVERY) if mark else 0
        return mark, await self._workers.journal(self._journal.entries, LOG, first)

    def next_record(self) -> asyncio.Event:
        """Return an event that the next record sets; take it before reading, to miss nothing."""
        return self._written

    def before_last(self, most: int, after: int) -> int:
        """Return the record before the newest few, but none before `after`; 0: there is no such limit."""
        return max(after, self._sequence - most) if most else after

    async def read(self, after: int, most: int) -> list[Entry]:
        """Return records after a number, which must not be that of a record that is yet to come."""
        if after > self._sequence:
            raise InvalidInput(f"the audit log has {self._sequence} records; there is none after {after}")
        return await self._workers.journal(self._journal.entries, LOG, after, most)

    def end(self, job: JobId) -> str:
        """Return how a job ended, if that was recorded recently."""
        return self._ends.get(job, "")

    def lacks_end(self, job: JobId, at: float) -> bool:
        """Whether a job's end at a time is not recorded: the controller was killed at that moment."""
        return at > self._since and job not in self._ends

    async def write(self) -> None:
        """Write what is queued, until the log is closed."""
        while (waiting := await self._queue.get()) is not None:
            fields, done = waiting
            try:
                await self._append(fields)
            except Exception as error:  # whatever it is, jobs go on
                cause = f"the audit log cannot be continued: {reason(error)}"
                why = f"{cause}; restarting the controller may help"
                log.error(why)  # noqa: TRY400 - the reason says it all
                if not done.done():
                    done.set_exception(Broken(why))
                    done.exception()  # the caller may be gone
            else:
                if not done.done():
                    done.set_result(None)

    def close(self) -> None:
        """Let the writer end when it has written what is queued."""
        self._queue.put_nowait(None)

    async def _append(self, fields: dict[str, str]) -> None:
        record = AuditRecord.model_validate(
            {"sequence": self._sequence + 1, "at": self._clock.now(), "previous": self._head} | fields
        ).sealed()
        await self._workers.journal(
            self._journal.append, LOG, [Entry(record.sequence, record.model_dump_json())]
        )
        self._sequence, self._head = record.sequence, record.hash
        self._written.set()
        self._written = asyncio.Event()
        self.counts[record.what] += 1
        if record.sequence % MARK_EVERY == 0:
            mark = Snapshot(record.sequence, record.hash, {})
            await self._workers.journal(self._journal.save_snapshot, LOG, mark)

    def note(
        self, who: str, what: What, about: str, why: str = "", receipt: str = "", digest: str = ""
    ) -> "asyncio.Future[None]":
        """Queue a record; the future is done once it is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        fields = {"who": plain(who, 200), "what": what, "about": plain(about, 200), "why": plain(why)}
        self._queue.put_nowait((fields | {"receipt": receipt, "digest": digest}, done))
        return done

    async def record(self, who: str, what: What, about: str, why: str = "", digest: str = "") -> None:
        """Write a record; return when it is durable."""
        await self.note(who, what, about, why, digest=digest)

    def refused(self, who: str, about: str, why: str) -> None:
        """Record a refusal; repetitions within a minute, and very many different ones, are only counted."""
        if self._is_rare((who, about, why), 1) and self._is_rare((who, "refused", ""), REFUSALS):
            log.warning("%s: %s refused: %s", who, about, why)
            self._note_if_room(who, "refused", about, why)

    def moved(self, who: str, what: Literal["joined", "left"], about: str, why: str = "") -> None:
        """Record that a daemon came or went; if it does so all the time, that is only counted."""
        if self._is_rare((who, what, ""), MOVES):
            self._note_if_room(who, what, about, why)

    def _is_rare(self, key: tuple[str, str, str], most: int) -> bool:
        """Count something; return whether it has happened at most `most` times in this minute.

        What callers do must not fill the disk.
        """
        now = self._clock.now()
        since, count = self._recent.pop(key, (now, 0))
        if now - since >= QUIET:
            if count > most:
                self._note_if_room(
                    key[0], "silenced", key[1], f"{count - most} more in a minute: {key[2]}".rstrip(": ")
                )
            since, count = now, 0
        while len(self._recent) >= REMEMBERED:
            self._recent.pop(next(iter(self._recent)))
        self._recent[key] = (since, count + 1)
        return count < most

    def _note_if_room(self, who: str, what: What, about: str, why: str) -> None:
        if self._queue.qsize() < WAITING:
            self.note(who, what, about, why)
