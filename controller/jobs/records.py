"""The journal's records of jobs: submissions, events and snapshots, read again after a restart."""

import json
import logging
from collections.abc import Sequence

from hansa.common.job.spec import JobSpec
from hansa.common.process import faults
from hansa.common.process.clock import Clock, is_time
from hansa.common.values.errors import Broken, InvalidJob, NotFound
from hansa.common.values.ids import JobId
from hansa.common.values.wording.words import listed
from hansa.controller.audit.records import digest_of
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.storage.journal import Entry, JobRecord, Journal, fault
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)
NO_EVENTS = "the journal lost the job's events, but the store still has its models"
SNAPSHOT_EVERY = 500  # entries; a restart replays about this many, or two for each site


class Records:
    """All jobs' records. The journal's own thread reads and writes them, one at a time, in order."""

    def __init__(self, journal: Journal, workers: Workers, clock: Clock) -> None:
        self._journal, self._workers, self._clock = journal, workers, clock

    async def all(self) -> list[JobRecord]:
        """Return all submissions in their order."""
        return await self._workers.journal(self._journal.jobs)

    async def one(self, job: JobId) -> JobRecord | None:
        """Return a submission, if the journal has it."""
        return await self._workers.journal(self._journal.job, job)

    async def summaries(self) -> dict[JobId, str]:
        """Return the summaries of ended jobs."""
        return await self._workers.journal(self._journal.summaries)

    async def conclude(self, job: JobId, summary: str) -> None:
        """Keep the summary of an ended job."""
        await self._workers.journal(self._journal.conclude, job, summary)

    async def enter(self, record: JobRecord) -> None:
        """Make a submission durable."""
        await self._workers.journal(self._journal.create, record)

    async def append(self, job: JobId, entries: Sequence[Entry]) -> None:
        """Make events durable. While the journal cannot be written the job waits; nothing is acknowledged."""
        await self._workers.journal(self._journal.append, job, entries)

    async def save(self, machine: Machine) -> None:
        """Save a snapshot of a job if the last one is old enough."""
        interval = max(SNAPSHOT_EVERY, 2 * len(machine.state.learners))  # snapshots grow with the sites
        if machine.unsaved >= interval:
            await self._workers.journal(self._journal.save_snapshot, machine.job, machine.snapshot())

    async def catch_up(self, machine: Machine) -> Machine:
        """Bring a new machine to where its job's journal ends."""
        machine.start()
        try:
            snapshot = await self._workers.journal(self._journal.snapshot, machine.job)
            if snapshot:
                machine.restore(snapshot)
        except (Broken, KeyError, ValueError) as error:  # it only saves time: the journal has every event
            log.warning(
                "job %s is replayed from its first event: its snapshot is damaged: %s", machine.job, error
            )
            machine = Machine(machine.job, machine.spec, machine.rule, machine.state.submitted)
            machine.start()
        known = machine.state.sequence
        entries = await self._workers.journal(self._journal.entries, machine.job, max(0, known - 1))
        if known and (not entries or entries[0].sequence != known):
            raise Broken(f"the journal of job {machine.job} lost entry {known}, which its snapshot includes")
        for entry in entries[1 if known else 0 :]:
            self._clock.catch_up(replay(machine, entry).at)
        self._clock.catch_up(machine.state.latest)  # a snapshot may be newer than every entry
        return machine

    async def forget(self, job: JobId) -> None:
        """Remove all that is known of a job; others get a turn in between."""
        while await self._workers.journal(self._journal.forget, job):
            faults.reach("journal-shrinking")

    async def digest(self, job: JobId) -> str:
        """Return the digest of a submission and all its events."""
        return await self._workers.journal(self._digest, job)

    def _digest(self, job: JobId) -> str:
        record = self._journal.job(job)
        if record is None:
            raise Broken(f"the journal lost job {job}")
        return digest_of(record.spec, self._journal.entries(job))


def read_again(spec: JobSpec) -> JobSpec:
    """Return a job as a restart would read it from the journal; refuse a job that could not be read."""
    try:
        return JobSpec.model_validate_json(spec.model_dump_json())
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the job cannot be stored and read again: {fault(error)}") from None


def read_spec(record: JobRecord) -> JobSpec:
    """Return the job as it was submitted, or raise Broken, naming the job, if the record is damaged."""
    try:
        return JobSpec.model_validate_json(record.spec)
    except ValueError as error:
        raise Broken(f"the record of job {record.id} is damaged: {fault(error)}") from error


def replay(machine: Machine, entry: Entry) -> ev.Event:
    """Apply a journal entry and return its event; raise Broken if the entry is damaged or out of order."""
    event = event_of(machine.job, entry, machine.state.sequence + 1)
    try:
        machine.handle(event)
    except Exception as error:
        raise _damaged(machine.job, entry, fault(error)) from error
    return event


def event_of(job: JobId, entry: Entry, expected: int) -> ev.Event:
    """Return the event of a journal entry; raise Broken if it is damaged or does not have this number."""
    if entry.sequence != expected:
        raise Broken(f"journal entry {expected} of job {job} is missing")
    if not entry.sound:
        raise _damaged(job, entry, "its checksum is wrong")
    try:
        event = ev.EVENT.validate_json(entry.event)
    except (ValueError, RecursionError) as error:
        raise _damaged(job, entry, fault(error)) from error
    if not is_time(event.at):
        raise _damaged(job, entry, f"at: {event.at:g} is not a time")
    return event


def _damaged(job: JobId, entry: Entry, why: str) -> Broken:
    return Broken(f"journal entry {entry.sequence} of job {job} is damaged: {why}")


def find_record(records: Sequence[JobRecord], words: str) -> JobRecord:
    """Return the only job with a name or with an id that begins with these words."""
    named = [record for record in records if _name(record) == words]
    matches = named or [record for record in records if record.id.startswith(words)]
    if len(matches) != 1:
        known = listed((record.id for record in records), 10) or "none"
        which = "several jobs match" if matches else "no job matches"
        raise NotFound(f"{which} {words!r}; known jobs: {known}")
    return matches[0]


def _name(record: JobRecord) -> str:
    try:
        return str(json.loads(record.spec)["name"])
    except (ValueError, KeyError, TypeError):
        return ""  # damaged; it can still be named by its id
