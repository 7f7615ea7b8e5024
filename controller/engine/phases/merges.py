"""Merges: one at a time, in the order in which they were decided on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from hansa.common.values.ids import SiteName, community_key
from hansa.common.values.tasks import Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect, Member, MergePlan, StartMerge
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import inquiries
from hansa.controller.engine.state import PendingMerge, VersionRecord
from hansa.controller.plugin import checks as demands
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.view import Contribution


def queue(job: Job, pending: PendingMerge, now: float) -> list[Effect]:
    """Take a merge into the queue, and start it if no other is under way."""
    job.state.queue.append(pending)
    return [] if job.state.merging else start(job, now)


def forget_absent(job: Job, plan: MergePlan) -> None:
    """Queue the removal of sites that left while their update was waiting to be merged, if the rule forgets such."""
    if job.rule.merge.forgets:
        leaving = {pending.forgotten for pending in job.state.queue}
        gone = {member.site for member in plan.added} - set(job.state.learners) - leaving
        job.state.queue += [PendingMerge(forgotten=site) for site in sorted(gone)]


def start(job: Job, now: float) -> list[Effect]:
    """Start the first merge of the queue: first parts of the rule may look at what is to be merged."""
    waited = job.state.queue[0]
    contributions = tuple(_completed(job, c) for c in waited.contributions)
    job.state.queue[0] = waited.model_copy(update={"contributions": contributions})
    effects: list[Effect] = []
    for point, part in job.rule.parts.items():
        question = part.question(job.memories[point], contributions, job.view(now)) if contributions else None
        if question is not None:
            effects.append(inquiries.ask(job, point, question, contributions))
    return effects or weigh(job, now)


def weigh(job: Job, now: float) -> list[Effect]:
    """Weigh the first merge of the queue, once all that it has waited for is known, and have it computed."""
    assert job.state.current is not None
    pending = job.state.queue[0]
    heard, job.state.heard = job.state.heard, {}
    for point, part in job.rule.parts.items():
        if point in heard:
            facts, trouble = heard[point].facts, heard[point].trouble
            part.examined(job.memories[point], pending.contributions, facts, trouble, job.view(now))
    stale = {c.site: why for c in pending.contributions if (why := job.rule.server.refuses(c.staleness[0]))}
    added, note = _weighed(job, pending.contributions, now)
    still = bool(note)
    if not still:
        added, note = _in_company(job, tuple(replace(m, weight=0.0) if m.site in stale else m for m in added))
    settled = bool(note) or not (job.rule.weigh.joint and job.rule.merge.remembers)
    reweighed = () if settled else tuple(_reweighed(job, added))
    current, known = (
        job.state.current,
        {"note": note, "lost": {**pending.lost, **stale}} | _told(job, pending, now),
    )
    if known["restart"] and job.state.first is not None:
        current, reweighed, still = job.state.first, (), False
        added = tuple(replace(member, weight=0.0) for member in added)
        known["note"] = "begins again from version 0"
    job.state.queue[0] = pending.model_copy(update=known)
    job.state.plan = MergePlan(
        version=job.state.version + 1,
        current=current,
        added=added,
        removed=(*_counted(job, pending.forgotten), *_overlaid(job, (*added, *reweighed))[1]),
        kept=job.rule.merge.kept,
        staleness=max((c.staleness[0] for c in pending.contributions), default=0),
        reweighed=reweighed,
        still=still,
    )
    return [StartMerge(job.state.plan)]


def _told(job: Job, pending: PendingMerge, now: float) -> dict[str, Any]:
    """Ask the parts what there is to say of a merge whose weights are known."""
    given, view, memories = pending.contributions, job.view(now), job.memories
    if pending.forgotten is not None:
        return {"restart": False}
    told = {
        point: demands.require(demands.DIAGNOSTICS, part.diagnostics(memories[point], given, view), part)
        for point, part in job.rule.parts.items()
    }
    phases = [policy.phase(memories[point], given, view) for point, policy in job.rule.policies.items()]
    return {
        "scores": demands.require(
            demands.SCORES, job.rule.weigh.scores(memories["weigh"], given), job.rule.weigh
        ),
        "diagnostics": {point: diagnostics for point, diagnostics in told.items() if diagnostics},
        "phase": next((phase for phase in phases if phase), ""),
        "restart": any(policy.restarts(memories[point]) for point, policy in job.rule.policies.items()),
    }


def _completed(job: Job, c: Contribution) -> Contribution:
    """Add to a contribution what is known only now: what other sites found of it, and how stale it is."""
    found = job.state.appraisals.pop(c.task.id, None)
    reports = {"reports": found.reports, "unreported": found.unreported} if found else {}
    return c.model_copy(update={"staleness": _staleness(job, c), **reports})


def _weighed(job: Job, contributions: Sequence[Contribution], now: float) -> tuple[tuple[Member, ...], str]:
    """Let the weigher say what contributions are worth; if it cannot say it in numbers, everything stays as it is."""
    weigher, memory = job.rule.weigh, job.memories["weigh"]
    given = weigher.weigh(memory, contributions, job.view(now)) if contributions else np.zeros(0)
    weights = demands.require_numbers(weigher, given, len(contributions))
    with np.errstate(over="ignore", invalid="ignore"):
        worth = weights * np.array([c.factor for c in contributions])
    if np.isfinite(worth).all():
        demands.require_weights(weigher, weights, len(contributions))
        return tuple(member(c, float(weight)) for c, weight in zip(contributions, worth, strict=True)), ""
    new = tuple(
        member(c, 0.0) for c in contributions if not _counted(job, c.site)
    )  # what counts goes on counting
    return new, f"{weigher.point} {weigher.kind} gave weights that are not finite; the model before is kept"


def _in_company(job: Job, added: tuple[Member, ...]) -> tuple[tuple[Member, ...], str]:
    """Let nothing new count if the next model would be of fewer sites than the job promised them (`sites.together`).

    Without rounds the pacer holds updates back until there are enough, and what counts once goes on counting.
    """
    least = job.spec.sites.together
    if not added or least == 1:
        return added, ""
    sites = {member.site for member in added if member.weight > 0}
    if job.rule.merge.remembers:
        barrier = "barrier" in job.rule.pace.provides
        sites |= {
            site for site, held in job.state.members.items() if not barrier or any(m.weight > 0 for m in held)
        }
    count = job.rule.merge.taken(len(sites))
    if count >= least:
        return added, ""
    few = (
        "no site's update"
        if not count
        else "one site's update"
        if count == 1
        else f"the updates of {count} sites"
    )
    why = f"{few} would count, and it takes {least} (sites.together); the model before is kept"
    return tuple(replace(member, weight=0.0) for member in added), why


def _reweighed(job: Job, added: Sequence[Member]) -> Iterator[Member]:
    """Yield what goes on counting with another weight, where weights depend on what is new."""
    new, members = {member.site: member.tensors for member in added}, job.state.members
    staying = sorted(site for site in members if site not in new or new[site] is not None)
    weights = job.rule.weigh.again(job.memories["weigh"], staying) if added else {}
    demands.require_weights(job.rule.weigh, list(weights.values()), len(weights))
    for site in weights:
        covered = new.get(site) or frozenset()
        for member in members[site]:
            tensors = None if member.tensors is None else member.tensors - covered
            if (tensors is None or tensors) and member.weight != weights[site]:
                yield replace(member, weight=weights[site], tensors=tensors)


def _counted(job: Job, site: SiteName | None) -> list[Member]:
    """Return what counts of a site before the merge and may go on counting after it."""
    return job.state.members.get(site, []) if site is not None and job.rule.merge.remembers else []


def _overlaid(job: Job, added: Sequence[Member]) -> tuple[dict[SiteName, list[Member]], list[Member]]:
    """Return what counts of the sites that have something new, once it counts, and what it replaces."""
    changed: dict[SiteName, list[Member]] = {}
    removed: list[Member] = []
    for member in added:
        held = changed[member.site] if member.site in changed else _counted(job, member.site)
        kept, replaced = _overlay(held, member, job.state.outline) if job.rule.merge.remembers else (held, [])
        changed[member.site] = [*kept, member]
        removed += replaced
    return changed, removed


def _changed(job: Job, plan: MergePlan) -> dict[SiteName, list[Member]]:
    """Return what counts of each site that a plan is about, once it is carried out."""
    return {member.site: [] for member in plan.removed} | _overlaid(job, (*plan.added, *plan.reweighed))[0]


class Membership(Sequence[Member]):
    """Everything that counts once a plan is carried out: worked out only if somebody asks, as a rebuild of sums does.

    It may be read on a worker thread while the plan is under way: what counts changes only when the plan is
    done.
    """

    def __init__(self, job: Job, plan: MergePlan) -> None:
        self._job, self._plan = job, plan

    @cached_property
    def _members(self) -> tuple[Member, ...]:
        before = self._job.state.members if self._job.rule.merge.remembers else {}
        return in_order(before | _changed(self._job, self._plan))

    @overload
    def __getitem__(self, at: int) -> Member: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Member, ...]: ...
    def __getitem__(self, at: int | slice) -> Member | tuple[Member, ...]:
        return self._members[at]

    def __len__(self) -> int:
        return len(self._members)


def enter_version(job: Job, plan: MergePlan, pending: PendingMerge, event: ev.Merged) -> None:
    """Take the next community model into the job's history, with what it is made of."""
    state = job.state
    state.steps += pending.steps + sum(c.facts.steps for c in pending.contributions)
    record = VersionRecord(
        version=event.version,
        round=state.round if "barrier" in job.rule.pace.provides else event.version,
        at=event.at,
        digest=event.digest,
        distance=event.distance,
        contributions=_by_site(plan.added),
        updates=len(plan.added),
        steps=_steps(pending.contributions),
        hops=state.hops,
        staleness=_stalest(pending.contributions),
        scores=pending.scores,
        diagnostics=pending.diagnostics,
        phase=pending.phase,
        lost=pending.lost,
        note=pending.note or event.note,
        still=plan.still,
        bytes_up=event.bytes_up,
        bytes_down=event.bytes_down,
    )
    state.plan, state.hops = None, []
    state.bytes_up += event.bytes_up
    state.bytes_down += event.bytes_down
    job.enter_version(record, community_key(job.id, event.version), event.moments)
    _count(job, plan)
    for c in pending.contributions:
        job.let_go(c.model)


def _by_site(added: Sequence[Member]) -> dict[SiteName, float]:
    """Return what each site adds; one may have been the last to train several slots."""
    found: dict[SiteName, float] = {}
    for member in added:
        found[member.site] = found.get(member.site, 0.0) + member.weight
    return found


def _steps(contributions: Sequence[Contribution]) -> dict[SiteName, int]:
    """Return the optimizer steps of each site's contribution, of all together if it has several."""
    found: dict[SiteName, int] = {}
    for c in contributions:
        found[c.site] = found.get(c.site, 0) + c.facts.steps
    return found


def _stalest(contributions: Sequence[Contribution]) -> dict[SiteName, tuple[int, int]]:
    """Return how stale each site's contribution is, the stalest if it has several."""
    found: dict[SiteName, tuple[int, int]] = {}
    for c in contributions:
        found[c.site] = max(c.staleness, found.get(c.site, c.staleness))
    return found


def _count(job: Job, plan: MergePlan) -> None:
    """Let count what a plan says, in the place of what it replaces."""
    members = job.state.members
    changed = _changed(job, plan)
    if not job.rule.merge.remembers:
        changed = {site: [] for site in members} | changed
    for site, held in changed.items():
        for member in held:
            job.models.hold(member.model)
        for member in members.pop(site, []):
            job.models.release(member.model)
        if held:
            members[site] = held


def _staleness(job: Job, c: Contribution) -> tuple[int, int]:
    """Return how far the community went on while the site trained: versions, and steps with its own."""
    assert isinstance(c.task.work, Train)
    return job.state.version - c.task.work.version, job.state.steps - c.task.work.committed + c.facts.steps


def member(c: Contribution, weight: float) -> Member:
    """Return a contribution as merges see it."""
    tensors = (
        frozenset(c.task.work.tensors) if isinstance(c.task.work, Train) and c.task.work.tensors else None
    )
    return Member(
        site=c.site, task=c.task.id, model=c.model, weight=weight, tensors=tensors, slot=c.task.slot
    )


def in_order(members: Mapping[SiteName, Sequence[Member]]) -> tuple[Member, ...]:
    """Return everything that counts in the order in which it is merged: by slot, if there are slots, and by site."""
    found = [member for site in sorted(members) for member in members[site]]
    return tuple(sorted(found, key=lambda member: member.slot))


def _overlay(held: list[Member], new: Member, model: Outline | None) -> tuple[list[Member], list[Member]]:
    """Return what stays of a site's members and what is replaced, tensor by tensor, when a new one comes."""
    if new.tensors is None:
        return [], held
    kept, replaced = [], []
    for member in held:
        carried = member.tensors
        if carried is None:
            assert model is not None, "whoever has parts of models trained knows their tensors"
            carried = frozenset(tensor.name for tensor in model.tensors)
        stays, goes = carried - new.tensors, carried & new.tensors
        if stays:
            kept.append(replace(member, tensors=stays))
        if goes:
            replaced.append(replace(member, tensors=goes))
    return kept, replaced
