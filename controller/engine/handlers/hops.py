"""Hops: the steps of a round in which models travel from site to site.

Worker threads examine the models of a hop while training goes on. Nothing depends on what they find.
"""

from dataclasses import replace

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Hop, finite
from hansa.common.values.ids import ModelKey, SiteName, hop_key
from hansa.common.values.tasks import Evaluate
from hansa.controller.engine import versions
from hansa.controller.engine.accounts import coverage
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.handlers.evaluation import compute_metrics, draw
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging.weights import member_of
from hansa.controller.engine.orders import ExamineHop, HopExamined
from hansa.controller.engine.subjects import OfHop, OfUpdate
from hansa.controller.plugin.actions import HopEnded
from hansa.controller.plugin.view import Contribution


def finish(job: Job, action: HopEnded, now: float) -> list[Effect]:
    """Enter a hop into the round's record and have it examined, if the rule wants that."""
    assert job.state.current is not None
    job.state.hops.append(
        Hop(
            hop=action.hop,
            seconds=job.seconds(now),
            trained=len(action.trained),
            sites=[c.site for c, _ in action.trained],
            steps={c.site: c.facts.steps for c, _ in action.trained},
            skipped=action.skipped,
            lost=dict(action.lost),
        )
    )
    with calling(job.rule.evaluate) as plan:
        mean_wanted = plan.midway
    # With one hop, sites did not agree that others see their models, and the mean may be that of one slot.
    mean_wanted = mean_wanted and job.rule.redistributes and not action.last and bool(job.evaluators)
    compares = action.divergence != "none" and len(action.trained) > 1
    order = ExamineHop(
        version=job.state.version + 1,
        hop=action.hop,
        current=job.state.current,
        members=tuple(member_of(job, c, c.factor) for c in action.slots) if mean_wanted else (),
        compared=tuple(_pair(job, *each, action.divergence) for each in action.trained) if compares else (),
    )
    return [job.order(order)] if order.members or order.compared else []


def _pair(job: Job, c: Contribution, base: ModelKey | None, of: str) -> tuple[ModelKey, ModelKey | None]:
    """Return an update and, if changes are compared, the model that it was trained from."""
    return c.model, (base or job.state.current) if of == "delta" else None


def take_findings(job: Job, order: ExamineHop, result: HopExamined, now: float) -> list[Effect]:
    """Enter the findings on a hop, and have the mean of the slots evaluated if there is one."""
    subject = OfHop(order.version, order.hop)
    versions.hop_of(job, order.version, order.hop).divergence = finite(result.divergence)
    if not result.digest:
        return []
    mean = hop_key(job.id, order.version, order.hop)
    job.retention.add(mean)
    if job.state.phase != "training":
        return []
    work = Evaluate(model=mean, version=order.version - 1)
    view = replace(job.view(now), draw=(order.hop,))
    record = versions.hop_of(job, order.version, order.hop)
    asked = draw(job, record, job.evaluators, lambda site: _is_free(job, site), view)
    return [job.issue(site, job.state.round, work, subject=subject) for site in asked]


def _is_free(job: Job, site: SiteName) -> bool:
    return not job.open_tasks.evaluations(site, OfUpdate, OfHop)


def settle(job: Job, version: int, hop: int) -> list[Effect]:
    """Compute the metrics of a hop's mean once all evaluators have reported; nothing waits for them."""
    subject = OfHop(version, hop)
    if not job.open_tasks.awaits(subject):
        record = versions.hop_of(job, version, hop)
        compute_metrics(job, record, subject)
        coverage.tally(job, record, subject)
        job.state.reports.pop(subject.name, None)
    return job.retention.drop_idle()


def withdraw(job: Job, reason: str) -> list[Effect]:
    """Withdraw all evaluations of means, because the job waits only for that of its last version."""
    effects: list[Effect] = []
    for subject in job.open_tasks.subjects(OfHop):
        for task in job.open_tasks.evaluations_of(subject):
            job.finish(task.id)
            versions.findings_of(job, subject, task.site).unevaluated[task.site] = reason
            effects.append(WithdrawTask(task, reason))
        effects += settle(job, subject.version, subject.hop)
    return effects
