"""The audit log: who submitted, cancelled, joined, left, was refused. A chain of hashes beside the jobs' journals.

Every record holds the hash of the one before. A record about a job's submission also holds the digest of the
job as it was submitted; one about its end the hash of the job's newest receipt and the digest of its whole
journal, so that the jobs hang on this chain. A later head reveals every change to the records before it. There
is no key: an owner of the disk can write a new chain, and only a head that is kept elsewhere reveals that.

    submitted ──► the job is in the journal ──► accepted ──► the operator is told

A submission without `accepted` was interrupted: nobody was told of such a job, and it need not be there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from blake3 import blake3

from hansa.common.process.clock import Clock
from hansa.common.values.bounds import Value
from hansa.common.values.errors import Broken, reason
from hansa.common.values.ids import JobId
from hansa.common.values.receipts import Receipt
from hansa.common.values.words import plain
from hansa.controller.storage.journal import Entry, JobRecord, Journal
from hansa.controller.values.snapshots import Snapshot
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)
LOG = JobId("audit")  # no job can have this id
MARK_EVERY = 500  # records; a start reads at most so many
QUIET = 60.0  # seconds in which the same refusal is recorded once
MOVES = 10  # comings and goings of one daemon that are recorded in that time
REFUSALS = (
    30  # different refusals of one caller that are recorded in that time: callers choose much of the words
)
REMEMBERED = 1000  # different things that happened lately
WAITING = 10_000  # notes that are not written yet; what callers cause beyond that is not recorded

What = Literal[
    "started",
    "stopped",
    "submitted",
    "accepted",
    "cancelled",
    "ended",
    "joined",
    "left",
    "refused",
    "silenced",
]


class AuditRecord(Value):
    """One thing that somebody did or was not allowed to do."""

    sequence: int
    at: float
    who: str
    what: What
    about: str  # a job, a daemon, an RPC
    why: str = ""
    receipt: str = ""  # hash of the job's newest receipt
    digest: str = ""  # of the job as it was submitted, or of its journal at its end
    previous: str
    hash: str = ""

    def sealed(self) -> "AuditRecord":
        """Return the record with its hash."""
        text = self.model_dump_json(exclude={"hash"} if self.digest else {"hash", "digest"})
        return self.model_copy(update={"hash": blake3(text.encode()).hexdigest()})


class Audit:
    """Writes the log. `record` waits until a record is durable, `note` does not."""

    def __init__(self, journal: Journal, workers: Workers, clock: Clock) -> None:
        self._journal, self._workers, self._clock = journal, workers, clock
        self._sequence, self._head = 0, ""
        self.interrupted: set[JobId] = set()  # submitted lately and not accepted, as far as the log goes
        self._since, self._ends = (
            0.0,
            dict[JobId, str](),
        )  # how jobs ended, as far as it is in the log, from a time on
        self._queue: asyncio.Queue[tuple[dict[str, str], asyncio.Future[None]] | None] = asyncio.Queue()
        self.counts: Counter[str] = Counter()  # since the start
        self._recent: dict[tuple[str, str, str], tuple[float, int]] = {}  # since when, how often

    async def open(self) -> str:
        """Find the end of the chain, and the ends of jobs that were recorded lately; say what the store has lost."""
        mark, entries = await self._tail()
        for entry in entries:
            try:
                record = AuditRecord.model_validate_json(entry.event)
            except ValueError:
                log.warning(
                    "record %d of the audit log is damaged; `hansa audit verify` tells more", entry.sequence
                )
            else:
                self._head = record.hash
                self._since = self._since or (record.at if entry.sound else 0.0)
                self._ends |= {JobId(record.about): record.why} if record.what == "ended" else {}
                if record.what == "submitted":
                    self.interrupted.add(JobId(record.about))
                elif record.what == "accepted":
                    self.interrupted.discard(JobId(record.about))
            self._sequence = entry.sequence
        if mark is None or mark.sequence <= self._sequence:
            return ""
        lost = f"the store lost records {self._sequence + 1} to {mark.sequence} of the audit log, or more"
        log.error(lost)
        return lost

    async def _tail(self) -> tuple[Snapshot | None, list[Entry]]:
        """Return the newest mark and the records that a start must know: those since the mark before it."""
        try:
            mark = await self._workers.journal(self._journal.snapshot, LOG)
        except Broken as error:
            log.warning("the audit log is read from its first record: %s", error)
            mark = None
        first = max(0, mark.sequence - MARK_EVERY) if mark else 0
        return mark, await self._workers.journal(self._journal.entries, LOG, first)

    def end(self, job: JobId) -> str:
        """Return how a job ended, if that was recorded lately."""
        return self._ends.get(job, "")

    def lacks_end(self, job: JobId, at: float) -> bool:
        """Whether a job that ended then is not recorded as ended: the controller was killed in that moment."""
        return at > self._since and job not in self._ends

    async def write(self) -> None:
        """Write what is queued, until the log is closed."""
        while (waiting := await self._queue.get()) is not None:
            words, done = waiting
            try:
                await self._append(words)
            except Exception as error:  # whatever it is, jobs go on
                why = f"the audit log cannot be continued: {reason(error)}; a restart of the controller may help"
                log.error(why)  # noqa: TRY400 - the reason says all
                if not done.done():
                    done.set_exception(Broken(why))
                    done.exception()  # the caller may be gone
            else:
                if not done.done():
                    done.set_result(None)

    def close(self) -> None:
        """Let the writer end when it has written what is queued."""
        self._queue.put_nowait(None)

    async def _append(self, words: dict[str, str]) -> None:
        record = AuditRecord.model_validate(
            {"sequence": self._sequence + 1, "at": self._clock.now(), "previous": self._head} | words
        ).sealed()
        await self._workers.journal(
            self._journal.append, LOG, [Entry(record.sequence, record.model_dump_json())]
        )
        self._sequence, self._head = record.sequence, record.hash
        self.counts[record.what] += 1
        if record.sequence % MARK_EVERY == 0:
            mark = Snapshot(record.sequence, record.hash, {})
            await self._workers.journal(self._journal.save_snapshot, LOG, mark)

    def note(
        self, who: str, what: What, about: str, why: str = "", receipt: str = "", digest: str = ""
    ) -> "asyncio.Future[None]":
        """Queue a record; the future is done once it is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((_words(who, what, about, why) | {"receipt": receipt, "digest": digest}, done))
        return done

    async def record(self, who: str, what: What, about: str, why: str = "", digest: str = "") -> None:
        """Return when a record is durable."""
        await self.note(who, what, about, why, digest=digest)

    def refused(self, who: str, about: str, why: str) -> None:
        """Record a refusal; the same one again within a minute, or many different ones, are only counted."""
        if self._seldom((who, about, why), 1) and self._seldom((who, "refused", ""), REFUSALS):
            log.warning("%s: %s refused: %s", who, about, why)
            self._note_if_room(who, "refused", about, why)

    def moved(self, who: str, what: Literal["joined", "left"], about: str, why: str = "") -> None:
        """Record that a daemon came or went; a daemon that does so all the time is only counted."""
        if self._seldom((who, what, ""), MOVES):
            self._note_if_room(who, what, about, why)

    def _seldom(self, key: tuple[str, str, str], most: int) -> bool:
        """Whether something has happened at most so often in this minute: what callers do must not fill the disk."""
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


def _words(who: str, what: What, about: str, why: str) -> dict[str, str]:
    return {"who": plain(who, 200), "what": what, "about": plain(about, 200), "why": plain(why)}


def digest_of(spec: str, entries: Iterable[Entry] = ()) -> str:
    """Return the digest of a job as it was submitted and of everything that happened to it."""
    hasher = blake3()
    for text in (
        spec,
        *(part for entry in entries for part in (str(entry.sequence), entry.event, entry.receipt)),
    ):
        hasher.update(b"%d:%s" % (len(text.encode()), text.encode()))
    return hasher.hexdigest()


def read_records(journal: Journal) -> list[AuditRecord]:
    """Return all records that can be read."""
    found = []
    for entry in journal.entries(LOG):
        try:
            found.append(AuditRecord.model_validate_json(entry.event))
        except ValueError:
            continue
    return found


def check_records(journal: Journal) -> Iterator[str]:
    """Yield everything that is wrong with the log: gaps, changes, receipts that are not in their jobs' journals."""
    head, sequence = "", 0
    specs = {job.id: job.spec for job in journal.jobs()}
    accepted = {JobId(record.about) for record in read_records(journal) if record.what == "accepted"}
    for entry in journal.entries(LOG):
        sequence += 1
        try:
            record = AuditRecord.model_validate_json(entry.event)
        except ValueError:
            yield f"record {entry.sequence}: it cannot be read"
            head, sequence = "", entry.sequence
            continue
        if (entry.sequence, record.sequence) != (sequence, sequence):
            yield f"record {entry.sequence}: record {sequence} is missing"
            sequence = entry.sequence
        if entry.receipt:
            yield f"record {sequence}: it has a receipt, which is no part of the log"
        if record.previous != head:
            yield f"record {sequence}: it does not follow the record before it"
        if record.sealed().hash != record.hash:
            yield f"record {sequence}: it was changed"
        if record.receipt or record.digest:
            yield from _check_job(journal, record, specs, accepted)
        head = record.hash


def check_job(journal: Journal, job: JobRecord) -> Iterator[str]:
    """Yield where a job is not what the log says it was."""
    for record in read_records(journal):
        if record.about == job.id and (record.receipt or record.digest):
            yield from _check_job(journal, record, {job.id: job.spec}, {job.id})


def _check_job(
    journal: Journal, record: AuditRecord, specs: Mapping[JobId, str], accepted: Collection[JobId]
) -> Iterator[str]:
    """Yield what is wrong with the job that a record is about."""
    job = JobId(record.about)
    if record.receipt and record.receipt not in _receipts(journal.entries(job)):
        yield f"record {record.sequence}: job {job} has lost the receipt {record.receipt[:16]}…"
    if not record.digest:
        return
    if job not in specs:
        if record.what == "ended" or job in accepted or journal.entries(job):
            yield f"record {record.sequence}: job {job} is gone"
    elif record.what == "submitted" and digest_of(specs[job]) != record.digest:
        yield f"record {record.sequence}: job {job} is not the one that was submitted"
    elif record.what == "ended" and digest_of(specs[job], journal.entries(job)) != record.digest:
        yield f"record {record.sequence}: the journal of job {job} was changed after its end"


def _receipts(entries: Iterable[Entry]) -> set[str]:
    found = set()
    for entry in entries:
        if entry.receipt:
            try:
                found.add(Receipt.model_validate_json(entry.receipt).sealed().hash)
            except ValueError:
                continue
    return found
