"""The journal in Redis: a stream per job, whose ids are the entries' numbers."""

import json
from typing import Any

from hansa.common.ids import JobId
from hansa.controller.journal.base import Entry, JobRecord, Journal, conflict, gap
from hansa.controller.redis_space import RedisSpace

# One key, so it is atomic and works in a cluster. Returns {} or {number of the last entry, its event, its receipt}.
APPEND = """
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = 0
if #tail > 0 then last = tonumber(string.match(tail[1][1], '^%d+')) end
if last == tonumber(ARGV[1]) - 1 and last >= 0 then
  redis.call('XADD', KEYS[1], ARGV[1] .. '-0', 'event', ARGV[2], 'receipt', ARGV[3])
  return {}
end
if #tail > 0 and last == tonumber(ARGV[1]) then return {last, tail[1][2][2], tail[1][2][4]} end
return {last}
"""


class RedisJournal(Journal):
    """All jobs of a controller, below its prefix."""

    def __init__(self, space: RedisSpace) -> None:
        self._space = space

    def create(self, record: JobRecord) -> None:
        """Enter a job; harmless if the same record is there already."""
        text = json.dumps({"spec": record.spec, "at": record.at})
        with self._space.answering():
            self._space.client.hsetnx(self._space.key("jobs"), record.id, text)

    def append(self, job: JobId, entry: Entry) -> None:
        """Append an entry; repeating the same is harmless, a gap or a conflict raises Broken."""
        words = (entry.sequence, entry.event, entry.receipt)
        with self._space.answering():
            answer: list[Any] = self._space.client.eval(APPEND, 1, self._space.key("journal", job), *words)
        if len(answer) == 1:
            raise gap(job, entry.sequence, answer[0])
        if answer and [part.decode() for part in answer[1:]] != [entry.event, entry.receipt]:
            raise conflict(job, entry.sequence)

    def jobs(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        with self._space.answering():
            held = self._space.client.hgetall(self._space.key("jobs"))
        records = [JobRecord(JobId(job.decode()), **json.loads(text)) for job, text in held.items()]
        return sorted(records, key=lambda record: (record.at, record.id))

    def entries(self, job: JobId, after: int = 0) -> list[Entry]:
        """Return a job's entries in order, those with a higher number than `after`."""
        with self._space.answering():
            rows = self._space.client.xrange(self._space.key("journal", job), min=f"{after + 1}-0")
        return [
            Entry(int(number.partition(b"-")[0]), fields[b"event"].decode(), fields[b"receipt"].decode())
            for number, fields in rows
        ]

    def save_snapshot(self, job: JobId, sequence: int, snapshot: str) -> None:
        """Keep a job's state as of an entry, instead of an older snapshot."""
        with self._space.answering():
            self._space.client.set(self._space.key("snapshot", job), f"{sequence} {snapshot}")

    def snapshot(self, job: JobId) -> tuple[int, str] | None:
        """Return the newest snapshot and the number of the entry it includes."""
        with self._space.answering():
            held = self._space.client.get(self._space.key("snapshot", job))
        if held is None:
            return None
        sequence, _, text = held.decode().partition(" ")
        return int(sequence), text

    def close(self) -> None:
        """Nothing to do: the space is closed by whoever opened it."""
