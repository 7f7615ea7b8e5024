"""Evaluation of updates by other sites before they are weighed, if the weigher asks for it (metis-dvw §1).

Many updates are evaluated at the same time. A merge enters the queue when the evaluations of all its updates
are over: every evaluator that was asked has reported, failed or left, or the time is up.
"""

from dataclasses import replace

from hansa.common.plugins.calling import calling
from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Evaluate, Train
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging import merges
from hansa.controller.engine.state import PendingMerge, UpdateFindings
from hansa.controller.engine.subjects import OfUpdate
from hansa.controller.plugin import checks
from hansa.controller.plugin.view import Contribution

ALARM = "update-"  # followed by the task whose update is evaluated
LATE = "no report in time"


def prepare(job: Job, c: Contribution, now: float) -> list[Effect]:
    """Ask once for the evaluations of an update that the weigher wants."""
    if not job.rule.weigh.evaluates or c.task.id in job.state.updates:
        return []
    assert isinstance(c.task.work, Train)
    findings = job.state.updates[c.task.id] = UpdateFindings()
    job.state.reports[OfUpdate(c.task.id).name] = {}
    work = Evaluate(model=c.model, base=c.base, version=c.task.work.version, validation=True)
    effects: list[Effect] = []
    with calling(job.rule.weigh) as weigher:
        view = replace(job.view(now), evaluators=job.scorers)
        returned = weigher.requests(job.memory(weigher), c, view)
    requests = checks.require_requests(weigher, returned)
    for request in requests:
        if request.site in job.scorers:
            effects.append(job.issue(request.site, c.task.round, work, subject=OfUpdate(c.task.id)))
        else:
            findings.unevaluated[request.site] = "no evaluator of the site is connected"
    if effects:
        seconds = max(request.seconds for request in requests)
        effects.append(job.set_alarm(ALARM + c.task.id, now + seconds))
    return effects


def merge_when_ready(job: Job, pending: PendingMerge, now: float) -> list[Effect]:
    """Queue a merge once all its updates are evaluated."""
    effects = [effect for c in pending.contributions for effect in prepare(job, c, now)]
    if _is_ready(job, pending):
        return effects + merges.queue(job, pending, now)
    key = pending.contributions[0].task.id
    job.state.preparing[key] = pending
    for c in pending.contributions:
        job.state.updates[c.task.id].merge = key
    return effects


def settle(job: Job, update: TaskId, now: float) -> list[Effect]:
    """Queue the merge that waits for the evaluations of an update, if it waits for nothing else."""
    if job.open_tasks.awaits(OfUpdate(update)):
        return []
    job.state.alarms.pop(ALARM + update, None)
    key = job.state.updates[update].merge
    if key is None or not _is_ready(job, job.state.preparing[key]):
        return []
    return merges.queue(job, job.state.preparing.pop(key), now)


def time_out(job: Job, alarm: str, now: float) -> list[Effect]:
    """Go on without the evaluators that have not reported in time."""
    update = TaskId(alarm.removeprefix(ALARM))
    effects: list[Effect] = []
    for task in job.open_tasks.evaluations_of(OfUpdate(update)):
        job.finish(task.id)
        job.state.updates[update].unevaluated[task.site] = LATE
        effects.append(WithdrawTask(task, LATE))
    return [*effects, *settle(job, update, now)]


def _is_ready(job: Job, pending: PendingMerge) -> bool:
    return not any(job.open_tasks.awaits(OfUpdate(c.task.id)) for c in pending.contributions)
