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

# The arguments after the guard's are the number of the first entry, then event, receipt and checksum of each.
# Returns {} or, if they do not follow the last entry, its number.
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
        self._space = space

    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""
        text = json.dumps({"spec": record.spec, "at": record.at, "checksum": checksum_of(record)})
        self._space.write("HSETNX", self._space.key("jobs"), record.id, text)

    def append(self, job: JobId, entries: Sequence[Entry]) -> None:
        """Append consecutive entries, all or none; repeating them is harmless, a gap or a conflict raises Broken."""
        first = entries[0].sequence
        words: list[str] = []
        for entry in entries:
            words += (entry.event, entry.receipt, checksum(job, entry.sequence, entry.event))
        answer: list[int] = self._space.run(APPEND, (self._space.key("journal", job),), first, *words)
        if answer:
            held = self.entries(job, first - 1) if first >= 1 else []
            rest = missing(job, entries, held, answer[0])
            if rest:
                self.append(job, rest)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        with self._space.answering():
            held = self._space.client.hgetall(self._space.key("jobs"))
        records = [_record(JobId(job.decode()), text) for job, text in held.items()]
        return sorted(records, key=lambda record: (record.at, record.id))

    def job(self, job: JobId) -> JobRecord | None:
        """Return a job as it was submitted, if it is there."""
        with self._space.answering():
            held = self._space.client.hget(self._space.key("jobs"), job)
        return _record(job, held) if held is not None else None

    def conclude(self, job: JobId, summary: str) -> None:
        """Keep a summary of an ended job, with which it can be listed without its entries."""
        self._space.write("HSET", self._space.key("summaries"), job, checksum(job, summary) + summary)

    def summaries(self) -> dict[JobId, str]:
        """Return all summaries; damaged ones are left out."""
        with self._space.answering():
            held = self._space.client.hgetall(self._space.key("summaries"))
        size, found = len(checksum()), {}
        for name, kept in held.items():
            job, text = JobId(name.decode(errors="replace")), kept.decode(errors="replace")
            if text[:size] == checksum(job, text[size:]):
                found[job] = text[size:]
        return found

    def entries(self, job: JobId, after: int = 0) -> list[Entry]:
        """Return a job's entries in order, those with a higher number than `after`."""
        with self._space.answering():
            rows = self._space.client.xrange(self._space.key("journal", job), min=f"{after + 1}-0")
        return [_entry(job, int(number.partition(b"-")[0]), fields) for number, fields in rows]

    def save_snapshot(self, job: JobId, snapshot: Snapshot) -> None:
        """Keep a job's state instead of an older one, with those chapters of its history that are new: all or none."""
        fields = {"sequence": str(snapshot.sequence)}
        fields |= {"state": checksum(job, snapshot.sequence, snapshot.state) + snapshot.state}
        fields |= {
            str(number): checksum(job, number, text) + text for number, text in snapshot.chapters.items()
        }
        words = [word for field in fields.items() for word in field]
        self._space.write("HSET", self._space.key("snapshot", job), *words)  # one command: all or none

    def snapshot(self, job: JobId) -> Snapshot | None:
        """Return the newest snapshot with all chapters."""
        with self._space.answering():
            held = self._space.client.hgetall(self._space.key("snapshot", job))
        if not held:
            return None
        try:
            fields = {name.decode(): text.decode() for name, text in held.items()}
            sequence = int(fields.pop("sequence"))
            state = _checked(job, sequence, fields.pop("state"))
            return Snapshot(
                sequence, state, {int(n): _checked(job, int(n), text) for n, text in fields.items()}
            )
        except (KeyError, ValueError) as error:
            raise damaged_snapshot(job, one_line(error)) from error

    def close(self) -> None:
        """Nothing to do: the space is closed by whoever opened it."""


def _record(job: JobId, held: bytes) -> JobRecord:
    """Return a job as it was submitted; of a damaged record what there is, which nobody can take for a job."""
    try:
        fields = json.loads(held)
        kept = fields.pop("checksum", "")
        return sound(JobRecord(job, **fields), kept)
    except (ValueError, TypeError, AttributeError):
        return JobRecord(job, held.decode(errors="replace"), 0.0)


def _entry(job: JobId, sequence: int, fields: Mapping[bytes, bytes]) -> Entry:
    event = _text(fields, b"event")
    kept = _text(fields, b"checksum")
    return Entry(sequence, event, _text(fields, b"receipt"), kept == checksum(job, sequence, event))


def _checked(job: JobId, number: int, held: str) -> str:
    """Return a text of a snapshot without the checksum before it."""
    size = len(checksum())
    if checksum(job, number, held[size:]) != held[:size]:
        raise damaged_snapshot(job)
    return held[size:]


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """Read text that may be damaged or gone: whoever decodes the entry finds out, and names it."""
    return fields.get(name, b"").decode(errors="replace")
