"""Merges: one at a time, in the order in which they were decided on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import JsonValue

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Account, Version, finite
from hansa.common.values.ids import SiteName, community_key
from hansa.common.values.tasks import Train
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.orders import Merge, Merged
from hansa.controller.engine.phases import examinations
from hansa.controller.engine.state import PendingMerge
from hansa.controller.engine.subjects import OfUpdate
from hansa.controller.plugin import checks
from hansa.controller.plugin.parts import Part
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.values.members import Member, Standing, overlay


def queue(job: Job, pending: PendingMerge, now: float) -> list[Effect]:
    """Take a merge into the queue, and start it if no other is under way."""
    job.state.queue.append(pending)
    return [] if job.state.merging else start(job, now)


def forget_absent(job: Job, plan: Merge) -> None:
    """Queue the removal of sites that left while their update was waiting to be merged, if the rule forgets such."""
    if job.rule.forgets:
        leaving = {pending.forgotten for pending in job.state.queue}
        gone = {member.site for member in plan.added} - set(job.state.learners) - leaving
        job.state.queue += [PendingMerge(forgotten=site) for site in sorted(gone)]


def start(job: Job, now: float) -> list[Effect]:
    """Start the first merge of the queue: first parts of the rule may look at what is to be merged."""
    waited = job.state.queue[0]
    contributions = tuple(_completed(job, c) for c in waited.contributions)
    job.state.queue[0] = waited.model_copy(update={"contributions": contributions})
    effects: list[Effect] = []
    for point, part in job.rule.parts.items() if contributions else ():
        with calling(part):
            question = part.question(job.memory(part), contributions, job.view(now))
        if question is not None:
            effects.append(examinations.ask(job, point, question, contributions))
    return effects or weigh(job, now)


def weigh(job: Job, now: float) -> list[Effect]:
    """Weigh the first merge of the queue, once all that it has waited for is known, and have it computed."""
    assert job.state.current is not None
    pending = job.state.queue[0]
    outcomes, job.state.examined = job.state.examined, {}
    for point, part in job.rule.parts.items():
        if point in outcomes:
            facts, trouble = outcomes[point].facts, outcomes[point].trouble
            with calling(part):
                part.examined(job.memory(part), pending.contributions, facts, trouble, job.view(now))
    stale: dict[str, str] = {
        c.site: why for c in pending.contributions if (why := job.rule.refuses(c.staleness[0]))
    }
    added, note = _weighed(job, pending.contributions, now)
    still = bool(note)
    if not still:
        added, note = _in_company(job, tuple(replace(m, weight=0.0) if m.site in stale else m for m in added))
    settled = bool(note) or not (job.rule.weigh.joint and job.rule.merge.remembers)
    reweighed = () if settled else tuple(_reweighed(job, added))
    current, restarts = job.state.current, _restarts(job, pending)
    if restarts and job.state.first is not None:
        current, reweighed, still = job.state.first, (), False
        added = tuple(replace(member, weight=0.0) for member in added)
        note = "begins again from version 0"
    lost: dict[str, str] = {**pending.account.lost, **stale}
    account = _account(job, pending, now, added=added, lost=lost, note=note, still=still)
    job.state.queue[0] = pending.model_copy(update={"account": account})
    order = Merge(
        version=job.state.version + 1,
        current=current,
        added=added,
        removed=(*_counted(job, pending.forgotten), *_overlay(job, (*added, *reweighed))[1]),
        kept=job.rule.merge.kept,
        staleness=max((c.staleness[0] for c in pending.contributions), default=0),
        reweighed=reweighed,
        still=still,
        moments=job.moments(job.state.version),
        reference=job.state.reference,
    )
    return [job.order(order)]


def _restarts(job: Job, pending: PendingMerge) -> bool:
    """Whether a policy wants the merge to give version 0 again."""
    for policy in job.rule.policies if pending.forgotten is None else ():
        with calling(policy):
            if policy.restarts(job.memory(policy)):
                return True
    return False


def _account(job: Job, pending: PendingMerge, now: float, added: Sequence[Member], **known: Any) -> Account:
    """Say what a version is made of, and have the parts of the rule say what they have to say of it."""
    given, view = pending.contributions, job.view(now)
    said: dict[str, Any] = {}
    if pending.forgotten is None:
        diagnostics = {point: _diagnostics(job, part, given, view) for point, part in job.rule.parts.items()}
        with calling(job.rule.weigh) as weigher:
            scores = weigher.scores(job.memory(weigher), given)
        said = {
            "scores": checks.require_history(checks.SCORES, weigher, scores),
            "diagnostics": {point: remarks for point, remarks in diagnostics.items() if remarks},
            "phase": phase(job, given, view),
        }
    return Account(
        contributions=_by_site(added),
        updates=len(added),
        steps=_steps(given),
        staleness=_stalest(given),
        **known,
        **said,
    )


def _diagnostics(
    job: Job, part: Part[Any], contributions: Sequence[Contribution], view: View
) -> dict[str, JsonValue]:
    with calling(part):
        diagnostics = part.diagnostics(job.memory(part), contributions, view)
    return checks.require_history(checks.DIAGNOSTICS, part, diagnostics)


def phase(job: Job, contributions: Sequence[Contribution], view: View) -> str:
    """Return what the rule calls the round under way, or the one that these contributions end."""
    for policy in job.rule.policies:
        with calling(policy):
            name = policy.phase(job.memory(policy), contributions, view)
        if name:
            return name
    return ""


def _completed(job: Job, c: Contribution) -> Contribution:
    """Add to a contribution what is known only now: how other sites have evaluated it, and how stale it is."""
    findings = job.state.updates.pop(c.task.id, None)
    reports = job.state.reports.pop(OfUpdate(c.task.id).name, {})
    evaluated = {"reports": reports, "unevaluated": findings.unevaluated} if findings else {}
    return c.model_copy(update={"staleness": _staleness(job, c), **evaluated})


def _weighed(job: Job, contributions: Sequence[Contribution], now: float) -> tuple[tuple[Member, ...], str]:
    """Let the weigher say what contributions are worth; if it cannot say it in numbers, everything stays as it is."""
    with calling(job.rule.weigh) as weigher:
        given = (
            weigher.weigh(job.memory(weigher), contributions, job.view(now)) if contributions else np.zeros(0)
        )
    weights = checks.require_numbers(weigher, given, len(contributions))
    with np.errstate(over="ignore", invalid="ignore"):
        worth = weights * np.array([c.factor for c in contributions])
    if np.isfinite(worth).all():
        checks.require_weights(weigher, weights, len(contributions))
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
        common = job.rule.pace.common_rounds
        sites |= {
            site for site, held in job.state.members.items() if not common or any(m.weight > 0 for m in held)
        }
    with calling(job.rule.merge) as aggregator:
        count = aggregator.taken(len(sites))
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
    with calling(job.rule.weigh) as weigher:
        weights = weigher.again(job.memory(weigher), staying) if added else {}
        worth = list(weights.values())
    checks.require_weights(weigher, worth, len(worth))
    for site in weights:
        covered = new.get(site) or frozenset()
        for member in members[site]:
            tensors = None if member.tensors is None else member.tensors - covered
            if (tensors is None or tensors) and member.weight != weights[site]:
                yield replace(member, weight=weights[site], tensors=tensors)


def _counted(job: Job, site: SiteName | None) -> list[Member]:
    """Return what counts of a site before the merge and may go on counting after it."""
    return job.state.members.get(site, []) if site is not None and job.rule.merge.remembers else []


def _overlay(job: Job, added: Sequence[Member]) -> tuple[dict[SiteName, list[Member]], list[Member]]:
    """Return what counts of the sites that have something new, once it counts, and what it replaces."""
    names = [tensor.name for tensor in job.state.outline.tensors] if job.state.outline else []
    return overlay(job.state.members if job.rule.merge.remembers else None, added, names)


def enter_version(job: Job, order: Merge, pending: PendingMerge, result: Merged, now: float) -> None:
    """Take the next community model into the job's history, with what it is made of."""
    state = job.state
    state.steps += pending.steps + sum(c.facts.steps for c in pending.contributions)
    account = pending.account
    known = account.model_copy(update={"note": account.note or result.note})
    record = Version(
        version=order.version,
        round=state.round if job.rule.pace.common_rounds else order.version,
        seconds=job.seconds(now),
        digest=result.digest,
        distance=finite(result.distance),
        hops=state.hops,
        bytes_up=result.bytes_up,
        bytes_down=result.bytes_down,
        **dict(known),
    )
    state.hops = []
    state.bytes_up += result.bytes_up
    state.bytes_down += result.bytes_down
    job.enter_version(record, community_key(job.id, order.version), result.moments)
    _count(job, order)
    for c in pending.contributions:
        job.let_go(c.model)


def _by_site(added: Sequence[Member]) -> dict[str, float]:
    """Return what each site adds; one may have been the last to train several slots."""
    found: dict[str, float] = {}
    for member in added:
        found[member.site] = found.get(member.site, 0.0) + member.weight
    return found


def _steps(contributions: Sequence[Contribution]) -> dict[str, int]:
    """Return the optimizer steps of each site's contribution, of all together if it has several."""
    found: dict[str, int] = {}
    for c in contributions:
        found[c.site] = found.get(c.site, 0) + c.facts.steps
    return found


def _stalest(contributions: Sequence[Contribution]) -> dict[str, tuple[int, int]]:
    """Return how stale each site's contribution is, the stalest if it has several."""
    found: dict[str, tuple[int, int]] = {}
    for c in contributions:
        found[c.site] = max(c.staleness, found.get(c.site, c.staleness))
    return found


def _count(job: Job, order: Merge) -> None:
    """Let count what an order says, in the place of what it replaces."""
    members = job.state.members
    replaced: Standing = {member.site: [] for member in order.removed}
    if not job.rule.merge.remembers:
        replaced = {site: [] for site in members}
    changed = {**replaced, **_overlay(job, (*order.added, *order.reweighed))[0]}
    for site, counting in changed.items():
        job.retention.hold(*(member.model for member in counting))
        job.retention.release(*(member.model for member in members.pop(site, [])))
        if counting:
            members[site] = list(counting)


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
