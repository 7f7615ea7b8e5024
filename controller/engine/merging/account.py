"""The account of a version: what it is made of, with the remarks of the rule's parts."""

from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Account, Update
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import PendingMerge
from hansa.controller.plugin import checks
from hansa.controller.plugin.parts import Part
from hansa.controller.plugin.policies import Policy
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
    weights = {member.task: member.weight for member in added}
    updates = [_update(c, weights.get(c.task.id)) for c in contributions]
    return Account(updates=updates, **known, **remarks)


def _update(c: Contribution, weight: float | None) -> Update:
    return Update(
        site=c.site,
        task=c.task.id,
        slot=c.task.slot,
        weight=weight,
        examples=c.facts.n_train,
        used=c.facts.n_used,
        steps=c.facts.steps,
        seconds=c.facts.seconds,
        bytes_up=c.bytes_up,
        loss=c.facts.loss,
        staleness=c.staleness,
        metrics=dict(c.facts.metrics),
    )


def _diagnostics(
    job: Job, part: Part[Any], contributions: Sequence[Contribution], view: View
) -> dict[str, JsonValue]:
    with calling(part):
        diagnostics = part.diagnostics(job.memory(part), contributions, view)
    return checks.require_history(checks.DIAGNOSTICS, part, diagnostics)


def phase(job: Job, contributions: Sequence[Contribution], view: View) -> str:
    """Return the rule's name for the current round, or for the one that these contributions end."""
    for policy in job.rule.policies_with(Policy.phase):
        with calling(policy):
            name = policy.phase(job.memory(policy), contributions, view)
        if name:
            return name
    return ""
