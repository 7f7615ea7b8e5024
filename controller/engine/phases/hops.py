"""Hops: what happened within a round whose models travel from site to site, and what was found of them.

A study reads the models of a hop on the worker threads while training goes on. Nothing depends on what it
finds.
"""

from hansa.common.values.errors import Stale
from hansa.common.values.ids import ModelKey, hop_key
from hansa.common.values.tasks import Evaluate, Evaluation, Task
from hansa.controller.engine import events as ev
from hansa.controller.engine.accounts import coverage
from hansa.controller.engine.effects import Effect, StartStudy, StudyPlan, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases.evaluation import pool
from hansa.controller.engine.phases.merges import member
from hansa.controller.engine.state import HopRecord
from hansa.controller.plugin.actions import HopEnded
from hansa.controller.plugin.view import Contribution


def ended(job: Job, action: HopEnded, now: float) -> list[Effect]:
    """Enter a hop into the round's record and begin to study it, if that is wanted."""
    assert job.state.current is not None
    job.state.hops.append(
        HopRecord(
            hop=action.hop,
            at=now,
            trained=len(action.trained),
            sites=[c.site for c, _ in action.trained],
            steps={c.site: c.facts.steps for c, _ in action.trained},
            skipped=action.skipped,
            lost=dict(action.lost),
        )
    )
    # With one hop sites were not asked whether others may see their models, and a mean may be of one slot.
    wanted = job.rule.evaluate.midway and job.rule.redistributes and not action.last and bool(job.evaluators)
    plan = StudyPlan(
        version=job.state.version + 1,
        hop=action.hop,
        current=job.state.current,
        members=tuple(member(c, c.factor) for c in action.slots) if wanted else (),
        compared=tuple(_pair(job, *each, action.divergence) for each in action.trained)
        if _apart(action)
        else (),
    )
    if not plan.members and not plan.compared:
        return []
    job.begin_study(plan)
    return [StartStudy(plan)]


def _apart(action: HopEnded) -> bool:
    return action.divergence != "none" and len(action.trained) > 1


def _pair(job: Job, c: Contribution, base: ModelKey | None, of: str) -> tuple[ModelKey, ModelKey | None]:
    """Return an update and, if its change is to be compared, what it was trained from."""
    return c.model, (base or job.state.current) if of == "delta" else None


def studied(job: Job, event: ev.HopStudied) -> list[Effect]:
    """Enter what was found, and have the mean of the slots evaluated if there is one."""
    if (event.version, event.hop) not in job.studies:
        raise Stale(f"hop {event.hop} of version {event.version} is not being looked at")
    record = _record(job, event.version, event.hop)
    record.divergence, record.trouble = event.divergence, event.trouble
    effects: list[Effect] = []
    if event.digest:
        job.models.add(hop_key(job.id, event.version, event.hop))
    if event.digest and job.state.phase == "training":
        work = Evaluate(model=hop_key(job.id, event.version, event.hop), version=event.version - 1)
        free = [
            site for site in job.evaluators if not job.desk.judgements(site)
        ]  # one at a time: it has no hurry
        effects += [
            job.issue(site, job.state.round, work, scored=(event.version, event.hop)) for site in free
        ]
    job.end_study(event.version, event.hop)
    return effects


def scored(job: Job, task: Task, found: Evaluation | None, trouble: str = "") -> list[Effect]:
    """Enter what an evaluator found of the mean of the slots; nothing waits for it."""
    version, hop = job.state.scoring[task.id]
    job.finish(task.id)
    record = _record(job, version, hop)
    if found:
        coverage.enter(job, record, task.site, found)
    else:
        record.unevaluated[task.site] = trouble
    if (version, hop) not in job.state.scoring.values():
        pool(job, record)
        coverage.tally(job, record)
        record.close()
    return job.models.drop_idle()


def withdraw(job: Job, reason: str) -> list[Effect]:
    """Stop to evaluate means: the job waits for its last model only."""
    effects: list[Effect] = []
    for task in [job.state.tasks[each] for each in job.state.scoring]:
        effects += [WithdrawTask(task, reason), *scored(job, task, None, reason)]
    return effects


def _record(job: Job, version: int, hop: int) -> HopRecord:
    """Return the record of a hop: of the round under way, or of a version that was made meanwhile."""
    hops = job.record(version).hops if version <= job.state.version else job.state.hops
    return next(record for record in hops if record.hop == hop)
