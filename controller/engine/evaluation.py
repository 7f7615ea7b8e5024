"""Evaluation of community models. It never blocks training; only the last one is waited for."""

from collections.abc import Mapping

from hansa.common.ids import SiteName
from hansa.common.tasks import Evaluate, Evaluation, Task
from hansa.controller.engine import demands
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import VersionRecord


def evaluate(job: Job, now: float, last: bool = False) -> list[Effect]:
    """Ask those evaluators that the plan names for the newest version; only the last is asked of one that is behind."""
    assert job.state.current is not None
    work = Evaluate(model=job.state.current, version=job.state.version)
    wanted = job.rule.evaluate.due(job.memories["evaluate"], job.view(now), last)
    able = job.evaluators if last else job.free
    return [job.issue(site, job.state.round, work) for site in list(wanted) if site in able]


def settle(job: Job, task: Task, found: Evaluation | None, trouble: str = "") -> VersionRecord:
    """Enter an evaluation's outcome and return its version's record, which is closed if it was the last one."""
    assert isinstance(task.work, Evaluate)
    job.finish(task.id)
    record = job.record(task.work.version)
    if found:
        record.reports[task.site] = found
        if record.examples:
            job.state.reported = max(record.version, job.state.reported or 0)
    else:
        record.unevaluated[task.site] = trouble
    if not job.desk.evaluates(record.version):
        record.close(metrics(job, record))
        if record.examples:
            job.state.evaluated = max(record.version, job.state.evaluated or 0)
    return record


def metrics(job: Job, record: VersionRecord) -> Mapping[str, float]:
    """Return what the findings on a version say together, those that are here."""
    return record.pooled or combined(job, record.reports)


def combined(job: Job, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
    """Return what the plan makes of findings: numbers."""
    plan = job.rule.evaluate
    return demands.require(demands.METRICS, plan.combine(reports), plan)
