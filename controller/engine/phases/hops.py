"""Hops: what happened within a round whose models travel from site to site, and what was found of them.

Worker threads examine the models of a hop while training goes on. Nothing depends on what they find.
"""

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Hop, finite
from hansa.common.values.ids import ModelKey, hop_key
from hansa.common.values.tasks import Evaluate
from hansa.controller.engine.accounts import coverage
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.orders import ExamineHop, HopExamined
from hansa.controller.engine.phases.evaluation import pool
from hansa.controller.engine.phases.merges import member
from hansa.controller.engine.subjects import OfHop, OfUpdate
from hansa.controller.plugin.actions import HopEnded
from hansa.controller.plugin.view import Contribution


def ended(job: Job, action: HopEnded, now: float) -> list[Effect]:
    """Enter a hop into the round's record and have it examined, if that is wanted."""
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
    # With one hop sites were not asked whether others may see their models, and a mean may be of one slot.
    with calling(job.rule.evaluate) as plan:
        wanted = plan.midway
    wanted = wanted and job.rule.redistributes and not action.last and bool(job.evaluators)
    order = ExamineHop(
        version=job.state.version + 1,
        hop=action.hop,
        current=job.state.current,
        members=tuple(member(c, c.factor) for c in action.slots) if wanted else (),
        compared=tuple(_pair(job, *each, action.divergence) for each in action.trained)
        if _apart(action)
        else (),
    )
    return [job.order(order)] if order.members or order.compared else []


def _apart(action: HopEnded) -> bool:
    return action.divergence != "none" and len(action.trained) > 1


def _pair(job: Job, c: Contribution, base: ModelKey | None, of: str) -> tuple[ModelKey, ModelKey | None]:
    """Return an update and, if its change is to be compared, what it was trained from."""
    return c.model, (base or job.state.current) if of == "delta" else None


def examined(job: Job, order: ExamineHop, result: HopExamined) -> list[Effect]:
    """Enter what was found, and have the mean of the slots evaluated if there is one."""
    subject = OfHop(order.version, order.hop)
    job.hop(order.version, order.hop).divergence = finite(result.divergence)
    if not result.digest:
        return []
    mean = hop_key(job.id, order.version, order.hop)
    job.retention.add(mean)
    if job.state.phase != "training":
        return []
    work = Evaluate(model=mean, version=order.version - 1)
    free = [
        site for site in job.evaluators if not job.open_tasks.evaluations(site, OfUpdate, OfHop)
    ]  # no hurry
    return [job.issue(site, job.state.round, work, subject=subject) for site in free]


def evaluated(job: Job, version: int, hop: int) -> list[Effect]:
    """Work out the metrics of the mean of the slots when all evaluators have reported; nothing waits for it."""
    subject = OfHop(version, hop)
    if not job.open_tasks.evaluates(subject):
        record = job.hop(version, hop)
        pool(job, record, subject)
        coverage.tally(job, record, subject)
        job.state.reports.pop(subject.name, None)
    return job.retention.drop_idle()


def withdraw(job: Job, reason: str) -> list[Effect]:
    """Stop evaluating means: the job waits for its last model only."""
    effects: list[Effect] = []
    for subject in job.open_tasks.subjects(OfHop):
        for task in job.open_tasks.evaluations_of(subject):
            job.finish(task.id)
            job.findings(subject).unevaluated[task.site] = reason
            effects.append(WithdrawTask(task, reason))
        effects += evaluated(job, subject.version, subject.hop)
    return effects
