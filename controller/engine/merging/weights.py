"""Weights: what contributions are worth in a merge, and what goes on counting beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hansa.common.models.auxiliary import auxiliary_name
from hansa.common.plugins.calling import calling
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.engine.job import Job
from hansa.controller.plugin import checks
from hansa.controller.plugin.view import Contribution
from hansa.controller.values.members import Member, overlay


def member_of(job: Job, c: Contribution, weight: float) -> Member:
    """Return a contribution as merges see it."""
    work = c.task.work
    assert isinstance(work, Train)
    beside = [each.name for each in work.auxiliary if each.up]
    tensors = {*work.tensors, *(auxiliary_name(name, each) for name in beside for each in work.tensors)}
    return Member(
        site=c.site,
        task=c.task.id,
        model=c.model,
        weight=weight,
        tensors=frozenset(tensors) or None,
        slot=c.task.slot,
        base=work.model if job.rule.adds else None,
    )


def weigh(job: Job, contributions: Sequence[Contribution], now: float) -> tuple[tuple[Member, ...], str]:
    """Weigh contributions; if a weight is not finite, return a note that says so, and nothing new counts."""
    with calling(job.rule.weigh) as weigher:
        returned = np.zeros(0)
        if contributions:
            returned = weigher.weigh(job.memory(weigher), contributions, job.view(now))
    weights = checks.require_numbers(weigher, returned, len(contributions))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = weights * np.array([c.factor for c in contributions])
    if np.isfinite(scaled).all():
        checks.require_weights(weigher, weights, len(contributions))
        weighed = zip(contributions, scaled, strict=True)
        return tuple(member_of(job, c, float(weight)) for c, weight in weighed), ""
    # The last update of a site that already counts goes on counting.
    newcomers = tuple(member_of(job, c, 0.0) for c in contributions if not standing(job, c.site))
    note = f"{weigher.point} {weigher.kind} gave weights that are not finite; the previous model is kept"
    return newcomers, note


def require_company(job: Job, added: tuple[Member, ...]) -> tuple[tuple[Member, ...], str]:
    """Let nothing new count if the next model would be made from fewer sites than `sites.together` promises.

    Without rounds, the pacer holds updates back until there are enough; what counts once goes on counting.
    """
    least = job.spec.sites.together
    if not added or least == 1:
        return added, ""
    sites = {member.site for member in added if member.weight > 0}
    if job.rule.merge.remembers:
        any_weight = not job.rule.pace.common_rounds
        for site, members in job.state.members.items():
            if any_weight or any(member.weight > 0 for member in members):
                sites.add(site)
    with calling(job.rule.merge) as aggregator:
        count = aggregator.taken(len(sites))
    if count >= least:
        return added, ""
    few = {0: "no site's update", 1: "only one site's update"}.get(
        count, f"only the updates of {count} sites"
    )
    note = f"{few} would count, but a model takes {least} (sites.together); the previous model is kept"
    return tuple(replace(member, weight=0.0) for member in added), note


def reweigh(job: Job, added: Sequence[Member]) -> Iterator[Member]:
    """Yield the members that go on counting with another weight, where weights depend on what is new."""
    new, members = {member.site: member.tensors for member in added}, job.state.members
    staying = sorted(site for site in members if site not in new or new[site] is not None)
    with calling(job.rule.weigh) as weigher:
        weights = weigher.again(job.memory(weigher), staying) if added else {}
        numbers = list(weights.values())
    checks.require_weights(weigher, numbers, len(numbers))
    for site in weights:
        replaced = new.get(site) or frozenset()
        for member in members[site]:
            tensors = None if member.tensors is None else member.tensors - replaced
            if (tensors is None or tensors) and member.weight != weights[site]:
                yield replace(member, weight=weights[site], tensors=tensors)


def standing(job: Job, site: SiteName | None) -> list[Member]:
    """Return the members of a site that count before the merge and may go on counting after it."""
    return job.state.members.get(site, []) if site is not None and job.rule.merge.remembers else []


def lay_over(job: Job, added: Sequence[Member]) -> tuple[dict[SiteName, list[Member]], list[Member]]:
    """Return each site's members once what it adds counts, and the members that this replaces."""
    names = [tensor.name for tensor in job.state.outline.tensors] if job.state.outline else []
    names += [auxiliary_name(each.name, tensor) for each in job.rule.auxiliary for tensor in names]
    return overlay(job.state.members if job.rule.merge.remembers else None, added, names)
