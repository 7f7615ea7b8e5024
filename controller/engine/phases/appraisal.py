"""Appraisals: an update is evaluated by other sites before it is weighed, if the weigher asks (metis-dvw §1).

Appraisals of many updates run at once. A merge enters the queue when those of all its updates are complete:
every evaluator that was asked has answered, failed or left, or the time is up.
"""

from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Evaluate, Evaluation, Task, Train
from hansa.controller.engine.effects import Effect, WithdrawTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import merges
from hansa.controller.engine.state import Appraisal, PendingMerge
from hansa.controller.plugin import checks as demands
from hansa.controller.plugin.view import Contribution

ALARM = "appraisal-"  # with the task whose update is appraised


def prepare(job: Job, c: Contribution, now: float) -> list[Effect]:
    """Ask for the evaluations of an update that the weigher wants; once."""
    if not job.rule.weigh.appraises or c.task.id in job.state.appraisals:
        return []
    assert isinstance(c.task.work, Train)
    appraisal = job.state.appraisals[c.task.id] = Appraisal()
    work = Evaluate(model=c.model, base=c.base, version=c.task.work.version, validation=True)
    effects: list[Effect] = []
    weigher = job.rule.weigh
    requests = demands.require_requests(weigher, weigher.requests(job.memories["weigh"], c, job.view(now)))
    for request in requests:
        if request.site in job.evaluators:
            sent = job.issue(request.site, c.task.round, work, judged=c.task.id)
            appraisal.waiting.add(sent.task.id)
            effects.append(sent)
        else:
            appraisal.unreported[request.site] = "no evaluator of the site attends"
    if appraisal.waiting:
        effects.append(job.set_alarm(ALARM + c.task.id, now + max(request.seconds for request in requests)))
    return effects


def merge_when_ready(job: Job, pending: PendingMerge, now: float) -> list[Effect]:
    """Queue a merge as soon as all its updates are appraised."""
    effects = [effect for c in pending.contributions for effect in prepare(job, c, now)]
    if _complete(job, pending):
        return effects + merges.queue(job, pending, now)
    key = pending.contributions[0].task.id
    job.state.preparing[key] = pending
    for c in pending.contributions:
        job.state.appraisals[c.task.id].merge = key
    return effects


def settle(job: Job, task: Task, found: Evaluation | None, now: float, trouble: str = "") -> list[Effect]:
    """Enter what came of one evaluation."""
    update = job.state.judging[task.id]
    _enter(job, task, found, trouble)
    return _go_on(job, update, now)


def time_out(job: Job, alarm: str, now: float) -> list[Effect]:
    """Go on without those who have not answered in time."""
    update = TaskId(alarm.removeprefix(ALARM))
    late = [job.state.tasks[task] for task in sorted(job.state.appraisals[update].waiting)]
    for task in late:
        _enter(job, task, None, "no answer in time")
    return [*(WithdrawTask(task, "no answer in time") for task in late), *_go_on(job, update, now)]


def _enter(job: Job, task: Task, found: Evaluation | None, trouble: str) -> None:
    appraisal = job.state.appraisals[job.state.judging[task.id]]
    job.finish(task.id)
    appraisal.waiting.discard(task.id)
    if found:
        appraisal.reports[task.site] = found
    else:
        appraisal.unreported[task.site] = trouble


def _go_on(job: Job, update: TaskId, now: float) -> list[Effect]:
    """Queue the merge that has waited for an appraisal, if that was the last."""
    appraisal = job.state.appraisals[update]
    if appraisal.waiting:
        return []
    job.state.alarms.pop(ALARM + update, None)
    key = appraisal.merge
    if key is None or not _complete(job, job.state.preparing[key]):
        return []
    return merges.queue(job, job.state.preparing.pop(key), now)


def _complete(job: Job, pending: PendingMerge) -> bool:
    held = (job.state.appraisals.get(c.task.id) for c in pending.contributions)
    return not any(appraisal and appraisal.waiting for appraisal in held)
