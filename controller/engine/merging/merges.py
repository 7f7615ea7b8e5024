"""Merges: one at a time, in the order in which they were decided on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import JsonValue

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Version, finite
from hansa.common.values.ids import community_key
from hansa.common.values.tasks import Train
from hansa.controller.engine import versions
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging import account, examinations, weights
from hansa.controller.engine.orders import Merge, Merged
from hansa.controller.engine.state import PendingMerge
from hansa.controller.engine.subjects import OfUpdate
from hansa.controller.plugin import checks
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution
from hansa.controller.values.members import Member, Standing


def queue(job: Job, pending: PendingMerge, now: float) -> list[Effect]:
    """Put a merge into the queue, and start it if no other is in progress."""
    job.state.queue.append(pending)
    return [] if job.state.merging else start(job, now)


def forget_absent(job: Job, order: Merge) -> None:
    """Queue the removal of sites that left before their update was merged, if the rule forgets such sites."""
    if job.rule.forgets:
        leaving = {pending.forgotten for pending in job.state.queue}
        gone = {member.site for member in order.added} - set(job.state.learners) - leaving
        job.state.queue += [PendingMerge(forgotten=site) for site in sorted(gone)]


def start(job: Job, now: float) -> list[Effect]:
    """Start the first merge in the queue: if parts of the rule have questions, they examine it first."""
    pending = job.state.queue[0]
    contributions = tuple(_complete(job, c) for c in pending.contributions)
    job.state.queue[0] = pending.model_copy(update={"contributions": contributions})
    effects: list[Effect] = []
    for part in job.rule.examining if contributions else ():
        with calling(part):
            question = part.question(job.memory(part), contributions, job.view(now))
        if question is not None:
            effects.append(examinations.ask(job, part.point, question, contributions))
    return effects or order_merge(job, now)


def _complete(job: Job, c: Contribution) -> Contribution:
    """Add to a contribution what is known only now: how other sites evaluated it, and how stale it is."""
    findings = job.state.updates.pop(c.task.id, None)
    reports = job.state.reports.pop(OfUpdate(c.task.id).name, {})
    evaluated = {"reports": reports, "unevaluated": findings.unevaluated} if findings else {}
    return c.model_copy(update={"staleness": _staleness(job, c), **evaluated})


def _staleness(job: Job, c: Contribution) -> tuple[int, int]:
    """Return how far the community advanced while a site trained: in versions, and in steps with its own."""
    assert isinstance(c.task.work, Train)
    return job.state.version - c.task.work.version, job.state.steps - c.task.work.committed + c.facts.steps


def order_merge(job: Job, now: float) -> list[Effect]:
    """Weigh the first merge in the queue, whose examinations are over, and have it computed."""
    assert job.state.current is not None
    pending = job.state.queue[0]
    _hand_out_findings(job, pending, now)
    stale = {
        c.task.id: (c.site, why) for c in pending.contributions if (why := job.rule.refuses(c.staleness[0]))
    }
    added, note = weights.weigh(job, pending.contributions, now)
    still = bool(note)
    if not still:
        fresh = tuple(replace(m, weight=0.0) if m.task in stale else m for m in added)
        added, note = weights.require_company(job, fresh)
    settled = bool(note) or not (job.rule.weigh.joint and job.rule.merge.remembers)
    reweighed = () if settled else tuple(weights.reweigh(job, added))
    current, restarts = job.state.current, _restarts(job, pending)
    if restarts and job.state.first is not None:
        current, reweighed, still = job.state.first, (), False
        added = tuple(replace(member, weight=0.0) for member in added)
        note = "training begins again from version 0"
    lost: dict[str, str] = {**pending.account.lost, **dict(stale.values())}
    prepared = None if still or job.rule.server.plain else _prepare(job, pending, added, now)
    record = account.of(job, pending, now, added=added, lost=lost, note=note, still=still, prepared=prepared)
    job.state.queue[0] = pending.model_copy(update={"account": record})
    replaced = weights.lay_over(job, (*added, *reweighed))[1]
    order = Merge(
        version=job.state.version + 1,
        current=current,
        added=added,
        removed=(*weights.standing(job, pending.forgotten), *replaced),
        kept=job.rule.merge.kept,
        staleness=max((c.staleness[0] for c in pending.contributions), default=0),
        reweighed=reweighed,
        still=still,
        moments=versions.moments_of(job, job.state.version),
        reference=job.state.reference,
        sites=max(1, job.state.round_sites if job.rule.pace.common_rounds else len(job.eligible)),
        resets=tuple(sorted(job.resets)),
        prepared=prepared,
    )
    return [job.order(order)]


def _prepare(job: Job, pending: PendingMerge, added: Sequence[Member], now: float) -> JsonValue:
    """Return what the server update must know about a merge for its step."""
    weight_of = {member.task: member.weight for member in added}
    counts = np.array([weight_of.get(c.task.id, 0.0) for c in pending.contributions])
    with calling(job.rule.server) as server:
        returned = server.prepare(job.memory(server), pending.contributions, counts, job.view(now))
    return checks.require_prepared(server, returned)


def _hand_out_findings(job: Job, pending: PendingMerge, now: float) -> None:
    """Give every part of the rule the findings of its examination."""
    outcomes, job.state.examined = job.state.examined, {}
    for part in job.rule.examining:
        if part.point in outcomes:
            outcome = outcomes[part.point]
            with calling(part):
                part.examined(
                    job.memory(part), pending.contributions, outcome.facts, outcome.trouble, job.view(now)
                )


def _restarts(job: Job, pending: PendingMerge) -> bool:
    """Whether a policy wants version 0 as the result of the merge."""
    if pending.forgotten is not None:
        return False
    for policy in job.rule.policies_with(Policy.restarts):
        with calling(policy):
            if policy.restarts(job.memory(policy)):
                return True
    return False


def enter_version(job: Job, order: Merge, pending: PendingMerge, result: Merged, now: float) -> None:
    """Enter the next community model into the job's history, with what it is made of."""
    state = job.state
    state.steps += pending.steps + sum(c.facts.steps for c in pending.contributions)
    # A plugin that prepares something else when events are replayed does not change what happened.
    prepared = pending.account.prepared if result.prepared is None else result.prepared
    account = pending.account.model_copy(
        update={"note": pending.account.note or result.note, "prepared": prepared}
    )
    record = Version(
        version=order.version,
        round=state.round if job.rule.pace.common_rounds else order.version,
        seconds=job.seconds(now),
        digest=result.digest,
        auxiliary=result.auxiliary,
        distance=finite(result.distance),
        hops=state.hops,
        bytes_up=result.bytes_up,
        bytes_down=result.bytes_down,
        **dict(account),
    )
    state.hops = []
    state.bytes_up += result.bytes_up
    state.bytes_down += result.bytes_down
    versions.enter(job, record, community_key(job.id, order.version), result.moments)
    _update_members(job, order)
    for c in pending.contributions:
        versions.release_update(job, c.model)


def _update_members(job: Job, order: Merge) -> None:
    """Let the new members of an order count in place of those that they replace."""
    members = job.state.members
    replaced: Standing = {member.site: [] for member in order.removed}
    if not job.rule.merge.remembers:
        replaced = {site: [] for site in members}
    changed = {**replaced, **weights.lay_over(job, (*order.added, *order.reweighed))[0]}
    for site, counting in changed.items():
        job.retention.hold(*(key for member in counting for key in member.models))
        job.retention.release(*(key for member in members.pop(site, []) for key in member.models))
        if counting:
            members[site] = list(counting)
