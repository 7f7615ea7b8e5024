"""Evaluation of community models. It never blocks training; only the last version is waited for.

One version at a time is offered to all evaluators that the plan names. The newest follows when all of them
have answered, or the time is up: however slow evaluators are, some versions are evaluated by all. An
evaluator that is late keeps its task, and its report counts when it comes; until then it is not asked again,
so that it skips versions instead of falling behind for ever. What else it does, for other jobs or for a
weigher, only makes it slower.
"""

from collections.abc import Mapping

from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluate, Evaluation, Task
from hansa.controller.engine.accounts import coverage
from hansa.controller.engine.effects import Effect, SendTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Findings, VersionRecord
from hansa.controller.plugin import checks as demands

ALARM = "evaluation"  # ends the wait for evaluators: of the version on offer, or of the last one


def offer(job: Job, now: float) -> list[Effect]:
    """Offer the newest version to the evaluators that the plan names, unless others are awaited."""
    state, plan = job.state, job.rule.evaluate
    if ALARM in state.alarms or state.offered >= state.version:
        return []
    free = {site for site in job.evaluators if not job.desk.evaluations(site)}
    if not free:
        return []
    state.offered = state.version
    wanted = dict.fromkeys(plan.due(job.memories["evaluate"], job.view(now)))
    effects: list[Effect] = [_ask(job, site) for site in wanted if site in free]
    if not effects:
        return []
    coverage.account(job, job.record(state.version), awaited=True)
    return [*effects, job.set_alarm(ALARM, now + plan.timeout)]


def offer_last(job: Job) -> list[Effect]:
    """Ask every evaluator that is connected for the last version, unless it has reported on it or has the task."""
    record = job.record(job.state.version)
    asked = job.desk.evaluators(record.version)
    remaining = [site for site in job.evaluators if site not in record.reports and site not in asked]
    for site in remaining:
        record.unevaluated.pop(site, None)
    effects: list[Effect] = [_ask(job, site) for site in remaining]
    coverage.account(job, record, awaited(job, record))
    return effects


def _ask(job: Job, site: SiteName) -> SendTask:
    assert job.state.current is not None
    return job.issue(site, job.state.round, Evaluate(model=job.state.current, version=job.state.version))


def awaited(job: Job, record: VersionRecord) -> bool:
    """Whether somebody's report on a version is waited for; one that comes late is not."""
    if job.state.phase != "closing" and (
        record.version != job.state.offered or ALARM not in job.state.alarms
    ):
        return False
    return job.desk.evaluates(record.version)


def settle(job: Job, task: Task, found: Evaluation | None, trouble: str = "") -> VersionRecord:
    """Enter an evaluation's outcome and return its version's record."""
    assert isinstance(task.work, Evaluate)
    job.finish(task.id)
    record = job.record(task.work.version)
    if found:
        coverage.enter(job, record, task.site, found)
    else:
        record.unevaluated[task.site] = trouble
    if not awaited(job, record):
        _conclude(job, record)
    return record


def time_out(job: Job) -> VersionRecord:
    """Wait no longer for those who are late; return the record of the version that was offered last."""
    why = f"no result in {job.rule.evaluate.timeout:g} s"
    for version in sorted(job.desk.versions):
        record = job.record(version)
        for site in sorted(job.desk.evaluators(version)):
            record.unevaluated.setdefault(site, why)
        _conclude(job, record)
    return job.record(job.state.offered)


def _conclude(job: Job, record: VersionRecord) -> None:
    """Enter what the reports on a version say together: nobody is awaited any more, though more may come late."""
    state = job.state
    if state.phase != "closing" and record.version == state.offered:
        state.alarms.pop(ALARM, None)
    pool(job, record)
    coverage.account(job, record, awaited=False)
    if record.version < state.version:
        put_away(job, record.version)


def put_away(job: Job, version: int) -> None:
    """Keep of a version's reports only what they say together, unless more may come."""
    record = job.state.history[version]
    if record.pooled and record.reports and not job.desk.evaluates(version):
        job.record(version).close()


def give_up(job: Job) -> None:
    """Take the tasks of evaluators back because the job ends: nobody will report any more."""
    for version in sorted(job.desk.versions):
        record = job.record(version)
        for site in sorted(job.desk.evaluators(version)):
            record.unevaluated.setdefault(site, "the job ended before it reported")
            for task in job.desk.evaluations(site):
                job.finish(task.id)
        put_away(job, version)
    if job.state.version > 0:
        put_away(job, job.state.version)


def pool(job: Job, findings: Findings) -> None:
    """Enter what reports say together; one that does not fit the others is left out, and its site is named."""
    plan = job.rule.evaluate
    for site, why in demands.require(demands.REASONS, plan.odd(findings.reports), plan).items():
        findings.leave_out(site, why)
    findings.pool(combined(job, findings.reports))


def metrics(job: Job, record: VersionRecord) -> Mapping[str, float]:
    """Return what the findings on a version say together, those that are here."""
    return record.pooled or combined(job, record.reports)


def combined(job: Job, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
    """Return what the plan makes of findings: numbers."""
    plan = job.rule.evaluate
    return demands.require(demands.METRICS, plan.combine(reports), plan)
