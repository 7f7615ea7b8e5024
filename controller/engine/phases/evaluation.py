"""Evaluation of community models. It never blocks training; only the last version is waited for.

One version at a time is offered to all evaluators that the plan names. The newest follows when all of them have
reported, or the time is up: however slow evaluators are, some versions are evaluated by all. An evaluator that
is late keeps its task, and its report counts when it comes; until then it is not asked again, so that it skips
versions instead of falling further and further behind. What else it does, for other jobs or for a weigher, only
makes it slower.
"""

from collections.abc import Mapping

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Findings, Version, finite
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate
from hansa.controller.engine.accounts import coverage
from hansa.controller.engine.effects import Effect, SendTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.subjects import OfVersion, Subject
from hansa.controller.plugin import checks

ALARM = "evaluation"  # ends the wait for evaluators: of the version on offer, or of the last one


def offer(job: Job, now: float) -> list[Effect]:
    """Offer the newest version to the evaluators that the plan names, unless others are awaited."""
    state, plan = job.state, job.rule.evaluate
    if ALARM in state.alarms or state.offered >= state.version:
        return []
    free = {site for site in job.evaluators if not job.open_tasks.evaluations(site, OfVersion)}
    if not free:
        return []
    state.offered = state.version
    with calling(plan):
        wanted = dict.fromkeys(plan.due(job.memory(plan), job.view(now)))
    effects: list[Effect] = [_ask(job, site) for site in wanted if site in free]
    if not effects:
        return []
    coverage.account(job, job.record(state.version), awaited=True)
    return [*effects, job.set_alarm(ALARM, now + plan.timeout)]


def offer_last(job: Job) -> list[Effect]:
    """Ask every evaluator that is connected for the last version, unless it has reported on it or has the task."""
    record = job.record(job.state.version)
    done = {*job.open_tasks.evaluators(OfVersion(record.version)), *reports(job, OfVersion(record.version))}
    remaining = [site for site in job.evaluators if site not in done]
    for site in remaining:
        record.unevaluated.pop(site, None)
    effects: list[Effect] = [_ask(job, site) for site in remaining]
    coverage.account(job, record, awaited(job, record))
    return effects


def _ask(job: Job, site: SiteName) -> SendTask:
    assert job.state.current is not None
    version = job.state.version
    work = Evaluate(model=job.state.current, version=version)
    return job.issue(site, job.state.round, work, subject=OfVersion(version))


def awaited(job: Job, record: Version) -> bool:
    """Whether somebody's report on a version is waited for; one that comes late is not."""
    if job.state.phase != "closing" and (
        record.version != job.state.offered or ALARM not in job.state.alarms
    ):
        return False
    return job.open_tasks.evaluates(OfVersion(record.version))


def evaluated(job: Job, version: int) -> Version:
    """Take note that an evaluation of a version has ended, one way or another, and return the version."""
    record = job.record(version)
    if not awaited(job, record):
        _conclude(job, record)
    return record


def time_out(job: Job) -> Version:
    """Wait no longer for evaluators that are late; return the version that was offered last."""
    why = f"no result in {job.rule.evaluate.timeout:g} s"
    for version in job.open_tasks.versions:
        record = job.record(version)
        for site in sorted(job.open_tasks.evaluators(OfVersion(version))):
            record.unevaluated.setdefault(site, why)
        _conclude(job, record)
    return job.record(job.state.offered)


def _conclude(job: Job, record: Version) -> None:
    """Work out a version's metrics: nobody is awaited any more, though more reports may come late."""
    state = job.state
    if state.phase != "closing" and record.version == state.offered:
        state.alarms.pop(ALARM, None)
    pool(job, record, OfVersion(record.version))
    coverage.account(job, record, awaited=False)
    if record.version < state.version:
        put_away(job, record.version)


def put_away(job: Job, version: int) -> None:
    """Drop a version's reports, unless more may come: confusion matrices of many sites and versions are large."""
    subject = OfVersion(version)
    if job.state.history[version].metrics and not job.open_tasks.evaluates(subject):
        job.state.reports.pop(subject.name, None)


def give_up(job: Job) -> None:
    """Take the tasks of evaluators back because the job ends: there will be no more reports."""
    for version in job.open_tasks.versions:
        record = job.record(version)
        for task in job.open_tasks.evaluations_of(OfVersion(version)):
            record.unevaluated.setdefault(task.site, "the job ended before it reported")
            job.finish(task.id)
        put_away(job, version)
    if job.state.version > 0:
        put_away(job, job.state.version)


def reports(job: Job, subject: Subject) -> Mapping[SiteName, Evaluation]:
    """Return the reports on a subject, as long as they are kept."""
    return job.state.reports.get(subject.name, {})


def pool(job: Job, findings: Findings, subject: Subject) -> None:
    """Work out the metrics of a subject. A report that does not fit the others is left out, and its site is named."""
    entered = job.state.reports.get(subject.name, {})
    with calling(job.rule.evaluate) as plan:
        reasons = plan.odd(entered)
    for site, why in checks.require_history(checks.REASONS, plan, reasons).items():
        odd = entered.pop(site, None)
        if odd is not None:
            findings.examples -= odd.n
            findings.unevaluated[site] = why
    findings.metrics = pooled(job, subject)


def metrics(job: Job, record: Version) -> Mapping[str, float | None]:
    """Return the metrics of a version; as long as more reports may come, those of the reports that are here."""
    return record.metrics or pooled(job, OfVersion(record.version))


def pooled(job: Job, subject: Subject) -> dict[str, float | None]:
    """Return what the plan makes of all reports on a subject."""
    with calling(job.rule.evaluate) as plan:
        combined = plan.combine(reports(job, subject))
    metrics = checks.require_history(checks.METRICS, plan, combined)
    return {name: finite(value) for name, value in metrics.items()}
