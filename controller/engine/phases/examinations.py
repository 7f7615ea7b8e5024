"""Examinations: parts of the rule look at the numbers of updates on a worker thread before a merge is weighed.

Every part is asked for its question, and the merge waits for all parts that have one. What a part keeps from an
examination stays in the store until something else is kept under its name, or the job ends.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from hansa.common.values.ids import kept_key
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.orders import Examine
from hansa.controller.engine.state import Kept
from hansa.controller.plugin.view import Contribution


def ask(job: Job, point: str, question: JsonValue, contributions: Sequence[Contribution]) -> Effect:
    """Have a part look at the contributions of the first merge of the queue, which waits for it."""
    assert job.state.current is not None
    kept = {name: kept.key for name, kept in job.state.kept.get(point, {}).items()}
    return job.order(Examine(point, question, tuple(contributions), job.state.current, kept))


def keep(job: Job, number: int, point: str, digests: Mapping[str, str]) -> None:
    """Keep what a part has stored in an examination, in the place of what it kept before."""
    kept = job.state.kept.setdefault(point, {})
    for place, (name, digest) in enumerate(sorted(digests.items())):
        if name in kept:
            job.retention.release(kept.pop(name).key)
        if digest:
            kept[name] = Kept(key=kept_key(job.id, number, place), digest=digest)
            job.retention.add(kept[name].key)
            job.retention.hold(kept[name].key)


def forget(job: Job) -> None:
    """Nothing that parts keep is needed any more."""
    for held in job.state.kept.values():
        job.retention.release(*(kept.key for kept in held.values()))
    job.state.kept = {}
