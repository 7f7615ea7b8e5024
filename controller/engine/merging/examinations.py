"""Examinations: parts of the rule look at the numbers of updates before a merge is weighed.

They do so on worker threads. Every part is asked for its question, and the merge waits for all parts that
have one. What a part keeps from an examination stays in the store until the part keeps something else under
the same name, or the job ends.
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
    """Have a part examine the contributions of the first merge in the queue, which waits for it."""
    assert job.state.current is not None
    keys = {name: array.key for name, array in job.state.kept.get(point, {}).items()}
    return job.order(Examine(point, question, tuple(contributions), job.state.current, keys))


def keep(job: Job, number: int, point: str, digests: Mapping[str, str]) -> None:
    """Keep the arrays that a part stored in an examination, in place of those that it kept before."""
    arrays = job.state.kept.setdefault(point, {})
    for place, (name, digest) in enumerate(sorted(digests.items())):
        if name in arrays:
            job.retention.release(arrays.pop(name).key)
        if digest:
            key = kept_key(job.id, number, place)
            arrays[name] = Kept(key=key, digest=digest)
            job.retention.add(key)
            job.retention.hold(key)


def release_all(job: Job) -> None:
    """Stop keeping what parts have kept from their examinations."""
    for arrays in job.state.kept.values():
        job.retention.release(*(array.key for array in arrays.values()))
    job.state.kept = {}
