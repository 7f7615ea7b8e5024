"""Inquiries: a part of the rule looks at the numbers of updates, on a worker, and hears in an event what was found.

Before a merge is weighed every part is asked for its question; the merge waits for all that have one. What an
inquiry may read stays in the store while it is under way, and what a part keeps from it stays until something
else is kept under its name, or the job ends.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from hansa.common.values.errors import Stale
from hansa.common.values.ids import kept_key
from hansa.controller.engine.effects import Effect, StartExamination
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Inquiry, Kept
from hansa.controller.plugin.view import Contribution


def ask(job: Job, point: str, question: JsonValue, contributions: Sequence[Contribution]) -> Effect:
    """Have a part look at the contributions of the first merge of the queue, which waits for it."""
    state = job.state
    assert state.current is not None
    state.inquiry_count += 1
    number = state.inquiry_count
    inquiry = state.inquiries[number] = Inquiry(
        point=point,
        question=question,
        contributions=tuple(contributions),
        current=state.current,
        kept={name: kept.key for name, kept in state.kept.get(point, {}).items()},
    )
    for key in inquiry.models():
        job.models.hold(key)
    return StartExamination(number)


def close(job: Job, number: int, kept: Mapping[str, str] | None = None) -> Inquiry:
    """End an inquiry, with the digests of what its part keeps, or raise Stale."""
    if number not in job.state.inquiries:
        raise Stale(f"examination {number} is over")
    inquiry = job.state.inquiries.pop(number)
    held = job.state.kept.setdefault(inquiry.point, {})
    for place, (name, digest) in enumerate(sorted((kept or {}).items())):
        if name in held:
            job.models.release(held.pop(name).key)
        if digest:
            held[name] = Kept(key=kept_key(job.id, number, place), digest=digest)
            job.models.add(held[name].key)
            job.models.hold(held[name].key)
    for key in inquiry.models():
        job.models.release(key)
    return inquiry


def give_up(job: Job) -> None:
    """Nobody waits for what is being found out any more."""
    for number in list(job.state.inquiries):
        close(job, number)
    job.state.heard = {}


def forget(job: Job) -> None:
    """Nothing that parts keep is needed any more."""
    for held in job.state.kept.values():
        for kept in held.values():
            job.models.release(kept.key)
    job.state.kept = {}
