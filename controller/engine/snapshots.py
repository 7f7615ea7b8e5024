"""Snapshots: a job's memory as text, so that a restart need not replay every event.

The history grows with the job, so it is cut into chapters, and a snapshot holds only the chapters that have
changed since the last one. The journal replaces the old chapters with the new ones atomically.
"""

import json

from hansa.controller.engine.job import Job
from hansa.controller.engine.state import JobState
from hansa.controller.values.history import History
from hansa.controller.values.snapshots import Snapshot


def take(job: Job) -> Snapshot:
    """Return a job's memory, with only those chapters of the history that changed since the last snapshot."""
    memories = {point: memory.model_dump_json() for point, memory in job.memories.items()}
    document = {"state": job.state.model_dump_json(exclude={"history"}), "memories": memories}
    chapters = {number: job.state.history.text(number) for number in sorted(job.touched)}
    job.touched.clear()
    return Snapshot(job.state.sequence, json.dumps(document), chapters)


def restore(job: Job, snapshot: Snapshot) -> None:
    """Restore a job's memory from a snapshot that has all chapters."""
    document = json.loads(snapshot.state)
    state = JobState.model_validate_json(document["state"])
    state.history = History.of_chapters(snapshot.chapters)
    if len(state.history) != state.version + 1:
        # A store that evicts keys has dropped chapters that were saved earlier.
        raise ValueError("chapters of its history are missing")
    for point, memory in job.memories.items():
        if point in document["memories"]:  # an older controller may not have known the point
            job.memories[point] = type(memory).model_validate_json(document["memories"][point])
    job.remember(state)
