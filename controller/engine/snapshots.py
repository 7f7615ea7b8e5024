"""Snapshots: a job's memory as text, so that a restart need not replay every event.

The history grows with the job, so it is cut into chapters, and a snapshot holds only the chapters that have
changed since the last one. The journal replaces the old chapters with the new ones atomically.
"""

import json

from pydantic import TypeAdapter

from hansa.common.values.history import Version
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import CHAPTER, JobState
from hansa.controller.values.snapshots import Snapshot

HISTORY = TypeAdapter(list[Version])


def take(job: Job) -> Snapshot:
    """Return a job's memory, with only those chapters of the history that changed since the last snapshot."""
    memories = {point: memory.model_dump_json() for point, memory in job.memories.items()}
    document = {"state": job.state.model_dump_json(exclude={"history"}), "memories": memories}
    chapters = {
        number: HISTORY.dump_json(job.state.history[number * CHAPTER : (number + 1) * CHAPTER]).decode()
        for number in sorted(job.touched)
    }
    job.touched.clear()
    return Snapshot(job.state.sequence, json.dumps(document), chapters)


def restore(job: Job, snapshot: Snapshot) -> None:
    """Restore a job's memory from a snapshot that has all chapters."""
    document = json.loads(snapshot.state)
    state = JobState.model_validate_json(document["state"])
    for number in sorted(snapshot.chapters):
        state.history += HISTORY.validate_json(snapshot.chapters[number])
    if [record.version for record in state.history] != list(range(state.version + 1)):
        # A store that evicts keys has dropped chapters that were saved earlier.
        raise ValueError("chapters of its history are missing")
    for point, memory in job.memories.items():
        if point in document["memories"]:  # an older controller may not have known the point
            job.memories[point] = type(memory).model_validate_json(document["memories"][point])
    job.remember(state)
