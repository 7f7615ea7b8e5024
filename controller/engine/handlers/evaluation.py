"""Evaluation of community models. It never blocks training; a job waits only for that of its last version.

One version at a time is offered to the evaluators that the plan names. When all of them have reported or the
time is up, the newest version is offered. So some versions are evaluated by all, however slow evaluators are.
A late evaluator keeps its task, and its report counts when it arrives. Until then it is not asked again: it
skips versions instead of falling further and further behind. Its work for other jobs or for a weigher only
makes it slower.

Test sites are asked like all others, but their reports are kept apart: no target is reached by them.
"""

from collections.abc import Callable, Mapping, Sequence

from hansa.common.plugins.calling import calling
from hansa.common.values.history import Findings, Measured, Version, finite
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate
from hansa.controller.engine.accounts import best, coverage, evaluations
from hansa.controller.engine.effects import Effect, SendTask
from hansa.controller.engine.job import Job
from hansa.controller.engine.subjects import OfVersion, Subject
from hansa.controller.engine.versions import findings_of, findings_of_test_sites
from hansa.controller.plugin import checks
from hansa.controller.plugin.view import View

Reports = Mapping[SiteName, Evaluation]
ALARM = "evaluation"  # ends the wait for reports on the version on offer, or on the last one


def offer(job: Job, now: float) -> list[Effect]:
    """Offer the newest version to the evaluators that the plan names, unless another version is on offer."""
    state, plan = job.state, job.rule.evaluate
    if ALARM in state.alarms or state.offered >= state.version:
        return []
    if not any(_is_free(job, site) for site in job.evaluators):
        return []
    state.offered, record = state.version, job.record(state.version)
    with calling(plan):
        due = plan.due(job.memory(plan), job.view(now))
    wanted = [site for site in dict.fromkeys(due) if site in job.evaluators]
    asked = draw(job, record, wanted, lambda site: _is_free(job, site), job.view(now))
    effects: list[Effect] = [_ask(job, site) for site in asked]
    if not effects:
        return []
    coverage.account(job, record, awaited=True)
    return [*effects, job.set_alarm(ALARM, now + plan.timeout)]


def _is_free(job: Job, site: SiteName) -> bool:
    return not job.open_tasks.evaluations(site, OfVersion)


def draw(
    job: Job,
    findings: Measured,
    wanted: Sequence[SiteName],
    is_free: Callable[[SiteName], bool],
    view: View,
) -> list[SiteName]:
    """Return the evaluators to ask: those that are free, of all that are wanted or of the plan's sample."""
    test, asked = job.held_out.test, set[SiteName]()
    groups: list[tuple[Findings, list[SiteName]]] = [(findings, [s for s in wanted if s not in test])]
    if test:
        groups.append((findings_of_test_sites(findings), [s for s in wanted if s in test]))
    for part, group in groups:
        with calling(job.rule.evaluate) as plan:
            sample = plan.sample(group, view) if group else None
        if sample is not None:
            part.drawn = len(set(sample).intersection(group))
            busy = sorted(site for site in set(sample).intersection(group) if not is_free(site))
            part.unevaluated |= {site: coverage.why_not_asked(job, site) for site in busy}
        asked.update(group if sample is None else sample)
    return [site for site in wanted if site in asked and is_free(site)]


def offer_last(job: Job) -> list[Effect]:
    """Ask all connected evaluators for the last version, except those that have the task or have reported.

    No sample stands for all of them any longer.
    """
    record = job.record(job.state.version)
    subject = OfVersion(record.version)
    asked = {*job.open_tasks.evaluators(subject), *reports_on(job, subject)}
    for findings in filter(None, (record, record.test)):
        findings.drawn = None
    remaining = [site for site in job.evaluators if site not in asked]
    for site in remaining:
        findings_of(job, subject, site).unevaluated.pop(site, None)
    effects: list[Effect] = [_ask(job, site) for site in remaining]
    coverage.account(job, record, is_awaited(job, record))
    return effects


def _ask(job: Job, site: SiteName) -> SendTask:
    assert job.state.current is not None
    version = job.state.version
    work = Evaluate(
        model=job.state.current,
        version=version,
        own_model=job.rule.own_models,
        both=job.spec.evaluates_twice,
    )
    return job.issue(site, job.state.round, work, subject=OfVersion(version))


def is_awaited(job: Job, record: Version) -> bool:
    """Whether the job waits for a report on a version; it does not wait for late ones."""
    on_offer = record.version == job.state.offered and ALARM in job.state.alarms
    if job.state.phase != "closing" and not on_offer:
        return False
    return job.open_tasks.awaits(OfVersion(record.version))


def settle(job: Job, version: int) -> Version:
    """Note that an evaluation of a version is over, with or without a report, and return its record."""
    record = job.record(version)
    if not is_awaited(job, record):
        _conclude(job, record)
    return record


def time_out(job: Job) -> Version:
    """Stop waiting for late evaluators; return the record of the version that was offered last."""
    why = f"no result in {job.rule.evaluate.timeout:g} s"
    for version in job.open_tasks.versions:
        record = job.record(version)
        subject = OfVersion(version)
        for site in sorted(job.open_tasks.evaluators(subject)):
            findings_of(job, subject, site).unevaluated.setdefault(site, why)
        _conclude(job, record)
    return job.record(job.state.offered)


def _conclude(job: Job, record: Version) -> None:
    """Compute a version's metrics. The job waits for no more reports, though late ones may still arrive."""
    state = job.state
    if state.phase != "closing" and record.version == state.offered:
        state.alarms.pop(ALARM, None)
    compute_metrics(job, record, OfVersion(record.version))
    record.validation = _on_validation_data(job, record)
    coverage.account(job, record, awaited=False)
    best.consider(job, record)
    if record.version < state.version:
        drop_reports(job, record.version)


def drop_reports(job: Job, version: int) -> None:
    """Drop a version's reports, unless more may arrive: many confusion matrices take a lot of memory."""
    subject = OfVersion(version)
    record = job.state.history[version]
    measured = record.metrics or (record.test and record.test.metrics)
    if measured and not job.open_tasks.awaits(subject):
        job.state.reports.pop(subject.name, None)


def give_up(job: Job) -> None:
    """Close all evaluations of versions, because the job ends."""
    for version in job.open_tasks.versions:
        subject = OfVersion(version)
        for task in job.open_tasks.evaluations_of(subject):
            findings = findings_of(job, subject, task.site)
            findings.unevaluated.setdefault(task.site, "the job ended before it reported")
            job.finish(task.id)
        drop_reports(job, version)
    if job.state.version > 0:
        drop_reports(job, job.state.version)


def reports_on(job: Job, subject: Subject) -> Reports:
    """Return the reports on a subject, as long as they are kept."""
    return job.state.reports.get(subject.name, {})


def _split_reports(job: Job, subject: Subject) -> tuple[Reports, Reports]:
    """Return the reports on a subject that count, and those of the job's test sites."""
    reports, test = reports_on(job, subject), job.held_out.test
    if not test:
        return reports, {}
    apart = {site: report for site, report in reports.items() if site in test}
    return {site: report for site, report in reports.items() if site not in test}, apart


def compute_metrics(job: Job, findings: Measured, subject: Subject) -> None:
    """Compute a subject's metrics; a report that does not fit the others is left out and its site named."""
    counting, apart = _split_reports(job, subject)
    _compute(job, findings, subject, counting)
    if findings.test is not None:
        _compute(job, findings.test, subject, apart)


def _on_validation_data(job: Job, record: Version) -> Findings | None:
    """Return what the evaluators of a version found on validation data, if some of them used test data."""
    reports, _ = _split_reports(job, OfVersion(record.version))
    if all(report.split != "test" for report in reports.values()):
        return record.validation
    chosen = {
        site: report.validation if report.split == "test" else report for site, report in reports.items()
    }
    usable = {site: report for site, report in chosen.items() if report is not None and report.n}
    findings = Findings(examples=sum(report.n for report in usable.values()))
    if usable:
        findings.metrics = _combined(job, usable)
        evaluations.enter(findings, usable)
    return findings


def _compute(job: Job, findings: Findings, subject: Subject, reports: Reports) -> None:
    with calling(job.rule.evaluate) as plan:
        returned = plan.odd(reports)
    odd = checks.require_history(checks.REASONS, plan, returned)
    fitting = {site: report for site, report in reports.items() if site not in odd}
    for site in [site for site in reports if site in odd]:
        report = job.state.reports[subject.name].pop(site)
        findings.examples -= report.n
        findings.unevaluated[site] = odd[site]
    findings.metrics = _combined(job, fitting)
    evaluations.enter(findings, fitting)


def metrics(job: Job, record: Version) -> Mapping[str, float | None]:
    """Return a version's metrics; while more reports may arrive, those over the reports so far."""
    return record.metrics or _combined(job, _split_reports(job, OfVersion(record.version))[0])


def metrics_of_test_sites(job: Job, record: Version) -> Mapping[str, float | None]:
    """Return what the job's test sites found in a version, in the same way."""
    if record.test is None:
        return {}
    return record.test.metrics or _combined(job, _split_reports(job, OfVersion(record.version))[1])


def _combined(job: Job, reports: Reports) -> dict[str, float | None]:
    """Return the metrics that the plan computes from some reports on a subject."""
    with calling(job.rule.evaluate) as plan:
        returned = plan.combine(reports)
    combined = checks.require_history(checks.METRICS, plan, returned)
    return {name: finite(value) for name, value in combined.items()}
