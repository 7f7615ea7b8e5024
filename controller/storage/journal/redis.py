"""The journal in Redis: a stream per job, whose ids are the entries' numbers."""

import json
from collections.abc import Mapping, Sequence

from hansa.common.values.errors import one_line
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
from hansa.controller.storage.redis.lease import GUARD, Script
from hansa.controller.storage.redis.space import RedisSpace
from hansa.controller.values.snapshots import Snapshot

# The arguments after the guard's are the number of the first entry, then event, receipt and checksum of each
# entry. Returns {}, or the number of the last entry if these do not follow it.
APPEND = Script(
    GUARD
    + """
local tail = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last = 0
if #tail > 0 then last = tonumber(string.match(tail[1][1], '^%d+')) end
local first = tonumber(ARGV[2])
if last ~= first - 1 then return {last} end
for i = 3, #ARGV, 3 do
  local id = string.format('%d-0', first + (i - 3) / 3)
  redis.call('XADD', KEYS[2], id, 'event', ARGV[i], 'receipt', ARGV[i + 1], 'checksum', ARGV[i + 2])
end
return {}
"""
)


class RedisJournal(Journal):
    """All jobs of a controller, below its prefix."""

    def __init__(self, space: RedisSpace) -> None:
        self.space = space

    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the journal already has the same record."""
        text = json.dumps({"spec": record.spec, "at": record.at, "checksum": checksum_of(record)})
        self.space.write("HSETNX", self.space.key("jobs"), record.id, text)

    def append(self, job: JobId, entries: Sequence[Entry]) -> None:
        """Append consecutive entries, all or none."""
        first = entries[0].sequence
        fields: list[str] = []
        for entry in entries:
            fields += (entry.event, entry.receipt, checksum(job, entry.sequence, entry.event))
        last: list[int] = self.space.run(APPEND, (self.space.key("journal", job),), first, *fields)
        if last:
            present = self.entries(job, first - 1) if first >= 1 else []
            rest = missing(job, entries, present, last[0])
            if rest:
                self.append(job, rest)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        with self.space.answering():
            jobs = self.space.client.hgetall(self.space.key("jobs"))
        records = [_record(JobId(job.decode()), text) for job, text in jobs.items()]
        return sorted(records, key=lambda record: (record.at, record.id))

    def job(self, job: JobId) -> JobRecord | None:
        """Return a job as it was submitted, if the journal has it."""
        with self.space.answering():
            text = self.space.client.hget(self.space.key("jobs"), job)
        return _record(job, text) if text is not None else None

    def conclude(self, job: JobId, summary: str) -> None:
        """Keep the summary of an ended job, so that the job can be listed without reading its entries."""
        self.space.write("HSET", self.space.key("summaries"), job, checksum(job, summary) + summary)

    def summaries(self) -> dict[JobId, str]:
        """Return all summaries except damaged ones."""
        with self.space.answering():
            stored = self.space.client.hgetall(self.space.key("summaries"))
        size, summaries = len(checksum()), {}
        for name, value in stored.items():
            job, text = JobId(name.decode(errors="replace")), value.decode(errors="replace")
            if text[:size] == checksum(job, text[size:]):
                summaries[job] = text[size:]
        return summaries

    def entries(self, job: JobId, after: int = 0, most: int | None = None) -> list[Entry]:
        """Return a job's entries with a higher number than `after`, in order; at most the first so many."""
        with self.space.answering():
            rows = self.space.client.xrange(self.space.key("journal", job), min=f"{after + 1}-0", count=most)
        return [_entry(job, int(number.partition(b"-")[0]), fields) for number, fields in rows]

    def save_snapshot(self, job: JobId, snapshot: Snapshot) -> None:
        """Replace a job's snapshot by a newer one, which has only new chapters: all of it or nothing."""
        fields = {"sequence": str(snapshot.sequence)}
        fields |= {"state": checksum(job, snapshot.sequence, snapshot.state) + snapshot.state}
        fields |= {
            str(number): checksum(job, number, text) + text for number, text in snapshot.chapters.items()
        }
        words = [word for field in fields.items() for word in field]
        self.space.write("HSET", self.space.key("snapshot", job), *words)  # one command: all or none

    def snapshot(self, job: JobId) -> Snapshot | None:
        """Return the newest snapshot with all chapters."""
        with self.space.answering():
            stored = self.space.client.hgetall(self.space.key("snapshot", job))
        if not stored:
            return None
        try:
            fields = {name.decode(): text.decode() for name, text in stored.items()}
            sequence = int(fields.pop("sequence"))
            state = _checked(job, sequence, fields.pop("state"))
            return Snapshot(
                sequence, state, {int(n): _checked(job, int(n), text) for n, text in fields.items()}
            )
        except (KeyError, ValueError) as error:
            raise damaged_snapshot(job, one_line(error)) from error

    def forget(self, job: JobId) -> bool:
        """Remove all that is known of a job: Redis frees the memory of a stream in the background."""
        self.space.remove((self.space.key("journal", job), self.space.key("snapshot", job)))
        self.space.write("HDEL", self.space.key("summaries"), job)
        self.space.write("HDEL", self.space.key("jobs"), job)
        return False

    def close(self) -> None:
        """Do nothing: the caller that opened the space closes it."""


def _record(job: JobId, text: bytes) -> JobRecord:
    """Return a job as it was submitted; a damaged record is returned as it is and cannot be decoded."""
    try:
        fields = json.loads(text)
        stored = fields.pop("checksum", "")
        return sound(JobRecord(job, **fields), stored)
    except (ValueError, TypeError, AttributeError):
        return JobRecord(job, text.decode(errors="replace"), 0.0)


def _entry(job: JobId, sequence: int, fields: Mapping[bytes, bytes]) -> Entry:
    event = _text(fields, b"event")
    sound = _text(fields, b"checksum") == checksum(job, sequence, event)
    return Entry(sequence, event, _text(fields, b"receipt"), sound)


def _checked(job: JobId, number: int, text: str) -> str:
    """Return a text of a snapshot without the checksum before it."""
    size = len(checksum())
    if checksum(job, number, text[size:]) != text[:size]:
        raise damaged_snapshot(job)
    return text[size:]


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """Read text that may be damaged or missing; decoding the entry shows that."""
    return fields.get(name, b"").decode(errors="replace")
