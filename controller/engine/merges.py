"""Merges: one at a time, in the order in which they were decided on."""

from dataclasses import replace

import numpy as np

from hansa.common.ids import SiteName, community_key
from hansa.common.tasks import Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Change, Effect, Member, MergePlan, StartMerge
from hansa.controller.engine.job import Job
from hansa.controller.engine.parts import Contribution
from hansa.controller.engine.state import PendingMerge, VersionRecord


def queue(job: Job, pending: PendingMerge, now: float) -> list[Effect]:
    """Take a merge into the queue, and start it if no other is under way."""
    job.state.queue.append(pending)
    return start(job, now) if job.state.plan is None else []


def start(job: Job, now: float) -> list[Effect]:
    """Start the first merge of the queue."""
    assert job.state.current is not None
    job.state.plan = MergePlan(
        version=job.state.version + 1,
        current=job.state.current,
        change=_change(job, job.state.queue[0], now),
        kept=job.rule.merge.kept,
    )
    return [StartMerge(job.state.plan)]


def _change(job: Job, pending: PendingMerge, now: float) -> Change:
    """Weigh the contributions and say what they put in the place of what."""
    contributions = pending.contributions
    weights = job.rule.weigh.weigh(contributions, job.view(now)) if contributions else np.zeros(0)
    if weights.shape != (len(contributions),) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"the weigher {job.rule.weigh.kind!r} returned impossible weights {weights.tolist()}")
    added = tuple(_member(c, float(weight)) for c, weight in zip(contributions, weights, strict=True))
    if not job.rule.merge.remembers:
        return Change(added, (), added)
    members, removed = dict(job.state.members), []
    if pending.forgotten is not None:
        removed += members.pop(pending.forgotten, [])
    for member in added:
        kept, replaced = _overlay(members.get(member.site, []), member)
        members[member.site] = [*kept, member]
        removed += replaced
    return Change(added, tuple(removed), tuple(m for site in sorted(members) for m in members[site]))


def enter_version(job: Job, plan: MergePlan, pending: PendingMerge, event: ev.Merged) -> None:
    """Take the next community model into the job's history, with what it is made of."""
    state = job.state
    members: dict[SiteName, list[Member]] = {}
    for member in plan.change.members:
        members.setdefault(member.site, []).append(member)
    record = VersionRecord(
        version=event.version,
        round=state.round if "barrier" in job.rule.pace.provides else event.version,
        at=event.at,
        digest=event.digest,
        contributions={member.site: member.weight for member in plan.change.added},
        staleness={c.site: _staleness(job, c) for c in pending.contributions},
        lost=pending.lost,
        bytes_up=event.bytes_up,
        bytes_down=event.bytes_down,
    )
    state.history.append(record)
    state.plan = None
    state.version = event.version
    state.current = community_key(job.id, event.version)
    state.models.add(state.current)
    state.members = members
    state.fresh -= {c.model for c in pending.contributions}
    state.steps += sum(c.facts.steps for c in pending.contributions)


def _staleness(job: Job, c: Contribution) -> tuple[int, int]:
    """Return how far the community went on while the site trained: versions, and steps with its own."""
    assert isinstance(c.task.work, Train)
    return job.state.version - c.task.work.version, job.state.steps - c.task.work.committed + c.facts.steps


def _member(c: Contribution, weight: float) -> Member:
    tensors = frozenset(c.task.work.tensors) if isinstance(c.task.work, Train) and c.task.work.tensors else None
    return Member(site=c.site, task=c.task.id, model=c.model, weight=weight, tensors=tensors)


def _overlay(held: list[Member], new: Member) -> tuple[list[Member], list[Member]]:
    """Return what stays of a site's members and what is replaced, tensor by tensor, when a new one comes."""
    if new.tensors is None:
        return [], held
    kept, replaced = [], []
    for member in held:
        assert member.tensors is not None, "a site's updates are all whole or all partial"
        stays, goes = member.tensors - new.tensors, member.tensors & new.tensors
        if stays:
            kept.append(replace(member, tensors=stays))
        if goes:
            replaced.append(replace(member, tensors=goes))
    return kept, replaced
