"""Snapshots of a job: its state and its plugins' memories as text, and back."""

import json

from pydantic import TypeAdapter

from hansa.common.values.history import Version
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import CHAPTER, JobState
from hansa.controller.values.snapshots import Snapshot

HISTORY = TypeAdapter(list[Version])


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
