"""The account of a version: what it is made of, with the remarks of the rule's parts."""

from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Account
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import PendingMerge
from hansa.controller.plugin import checks
from hansa.controller.plugin.parts import Part
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.values.members import Member


def of(job: Job, pending: PendingMerge, now: float, added: Sequence[Member], **known: Any) -> Account:
    """Return what a version is made of, with the remarks of the rule's parts."""
    contributions, view = pending.contributions, job.view(now)
    remarks: dict[str, Any] = {}
    if pending.forgotten is None:
        diagnostics = {
            part.point: _diagnostics(job, part, contributions, view) for part in job.rule.diagnosing
        }
        with calling(job.rule.weigh) as weigher:
            scores = weigher.scores(job.memory(weigher), contributions)
        remarks = {
            "scores": checks.require_history(checks.SCORES, weigher, scores),
            "diagnostics": {point: each for point, each in diagnostics.items() if each},
            "phase": phase(job, contributions, view),
        }
    return Account(
        contributions=_weights_by_site(added),
        updates=len(added),
        steps=_steps_by_site(contributions),
        staleness=_staleness_by_site(contributions),
        **known,
        **remarks,
    )


def _diagnostics(
    job: Job, part: Part[Any], contributions: Sequence[Contribution], view: View
) -> dict[str, JsonValue]:
    with calling(part):
        diagnostics = part.diagnostics(job.memory(part), contributions, view)
    return checks.require_history(checks.DIAGNOSTICS, part, diagnostics)


def phase(job: Job, contributions: Sequence[Contribution], view: View) -> str:
    """Return the rule's name for the current round, or for the one that these contributions end."""
    for policy in job.rule.policies:
        with calling(policy):
            name = policy.phase(job.memory(policy), contributions, view)
        if name:
            return name
    return ""


def _weights_by_site(added: Sequence[Member]) -> dict[str, float]:
    """Return each site's weight, summed if it was the last to train several slots."""
    weight_of: dict[str, float] = {}
    for member in added:
        weight_of[member.site] = weight_of.get(member.site, 0.0) + member.weight
    return weight_of


def _steps_by_site(contributions: Sequence[Contribution]) -> dict[str, int]:
    """Return each site's optimizer steps, summed over its contributions."""
    steps: dict[str, int] = {}
    for c in contributions:
        steps[c.site] = steps.get(c.site, 0) + c.facts.steps
    return steps


def _staleness_by_site(contributions: Sequence[Contribution]) -> dict[str, tuple[int, int]]:
    """Return how stale each site's contribution is, the stalest if it has several."""
    staleness: dict[str, tuple[int, int]] = {}
    for c in contributions:
        staleness[c.site] = max(c.staleness, staleness.get(c.site, c.staleness))
    return staleness
