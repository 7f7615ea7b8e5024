"""Snapshots: a job's memory as text, so that a restart need not replay every event.

History and chronicle grow with the job, so they are cut into chapters, and a snapshot holds only the chapters
that have changed since the last one. The journal replaces the old chapters with the new ones atomically.
"""

import json
from bisect import bisect_left

from hansa.common.values.bounds import Value
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Happening, JobState
from hansa.controller.values import history as histories
from hansa.controller.values.history import History, Records
from hansa.controller.values.snapshots import Snapshot


class Chapter(Value):
    """Some consecutive versions, and what happened while each of them was the newest."""

    history: str  # JSON, which is parsed only when somebody looks at it
    chronicle: list[Happening]


def take(job: Job, history: bool = True) -> Snapshot:
    """Return a job's memory, with only those chapters of the history that changed since the last snapshot.

    Without `history` there are no chapters: the keeper of the history saves it, too.
    """
    memories = {point: memory.model_dump_json() for point, memory in job.memories.items()}
    document: dict[str, object] = {
        "state": job.state.model_dump_json(exclude={"history", *(("chronicle",) if history else ())}),
        "memories": memories,
    }
    document["told"] = len(job.state.chronicle)
    touched = sorted(job.touched) if history else ()
    chapters = {number: _chapter(job.state, number).model_dump_json() for number in touched}
    job.touched.clear()
    return Snapshot(job.state.sequence, json.dumps(document), chapters)


def restore(job: Job, snapshot: Snapshot, history: Records | None = None) -> None:
    """Restore a job's memory from a snapshot that has all chapters, or from its history and one without."""
    document = json.loads(snapshot.state)
    state = JobState.model_validate_json(document["state"])
    if history is not None:
        state.history = history
    else:
        chapters = [Chapter.model_validate_json(text) for _, text in sorted(snapshot.chapters.items())]
        texts = (chapter.history for chapter in chapters)
        state.history = History.of_chapters(dict(zip(sorted(snapshot.chapters), texts, strict=True)))
        state.chronicle = [entry for chapter in chapters for entry in chapter.chronicle]
    told = range(1, document["told"] + 1)
    if len(state.history) != state.version + 1 or [entry.number for entry in state.chronicle] != list(told):
        # A store that evicts keys has dropped chapters that were saved earlier.
        raise ValueError("chapters of its history are missing")
    for point, memory in job.memories.items():
        if point in document["memories"]:  # an older controller may not have known the point
            job.memories[point] = type(memory).model_validate_json(document["memories"][point])
    job.remember(state)


def _chapter(state: JobState, number: int) -> Chapter:
    assert isinstance(state.history, History), "others keep their histories themselves"
    first, end = number * histories.CHAPTER, (number + 1) * histories.CHAPTER
    since, until = (bisect_left(state.chronicle, at, key=lambda entry: entry.newest) for at in (first, end))
    return Chapter(history=state.history.text(number), chronicle=state.chronicle[since:until])
