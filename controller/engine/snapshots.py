"""Snapshots: a job's memory as text, so that a restart need not replay every event.

The history grows with the job; it is cut into chapters, and a snapshot holds only those that have changed
since the last one. Whoever keeps snapshots puts the new chapters in the place of the old ones, all at once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from hansa.common.values.history import Version
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import CHAPTER, JobState

HISTORY = TypeAdapter(list[Version])


@dataclass(frozen=True)
class Snapshot:
    """A job's memory as of an event."""

    sequence: int
    state: str  # JSON
    chapters: Mapping[int, str]  # JSON, by number


def take(job: Job) -> Snapshot:
    """Return a job's memory; of the history only the chapters that are newer than the last snapshot."""
    memories = {point: memory.model_dump_json() for point, memory in job.memories.items()}
    held = {"state": job.state.model_dump_json(exclude={"history"}), "memories": memories}
    chapters = {
        number: HISTORY.dump_json(job.state.history[number * CHAPTER : (number + 1) * CHAPTER]).decode()
        for number in sorted(job.touched)
    }
    job.touched.clear()
    return Snapshot(job.state.sequence, json.dumps(held), chapters)


def give_back(job: Job, snapshot: Snapshot) -> None:
    """Let a job remember a snapshot that has all its chapters."""
    held = json.loads(snapshot.state)
    state = JobState.model_validate_json(held["state"])
    for number in sorted(snapshot.chapters):
        state.history += HISTORY.validate_json(snapshot.chapters[number])
    if [record.version for record in state.history] != list(range(state.version + 1)):
        raise ValueError("chapters of its history are missing")  # a store that evicts took those saved before
    for point, memory in job.memories.items():
        if point in held["memories"]:  # an older controller may not have known the point
            job.memories[point] = type(memory).model_validate_json(held["memories"][point])
    job.remember(state)
