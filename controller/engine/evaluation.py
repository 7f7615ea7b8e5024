"""Evaluation of community models. It never blocks training; only the last one is waited for."""

from hansa.common.tasks import Evaluate, Evaluation, Task
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import VersionRecord

UNDER_WAY = 2  # evaluations per evaluator; a slow one skips versions instead of falling behind for ever


def evaluate(job: Job, final: bool = False) -> list[Effect]:
    """Ask every evaluator for its findings on the newest version; in the end even those that are behind."""
    assert job.state.current is not None
    work = Evaluate(model=job.state.current, version=job.state.version)
    effects: list[Effect] = []
    for site in sorted(job.state.evaluators):
        under_way = [task for task in job.evaluating() if task.site == site]
        if final or len(under_way) < UNDER_WAY:
            effects.append(job.issue(site, job.state.round, work))
    return effects


def settle(job: Job, task: Task, found: Evaluation | None, trouble: str = "") -> VersionRecord:
    """Enter an evaluation's outcome and return its version's record, which is closed if it was the last one."""
    assert isinstance(task.work, Evaluate)
    del job.state.tasks[task.id]
    record = next(record for record in job.state.history if record.version == task.work.version)
    if found:
        record.reports[task.site] = found
    else:
        record.unevaluated[task.site] = trouble
    if not job.evaluating(record.version):
        record.close()
    return record
