"""Reports of evaluators: every evaluation is settled here, whatever its subject, with or without a report."""

from typing import assert_never

from hansa.common.values.history import Findings
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Task
from hansa.controller.engine import versions
from hansa.controller.engine.accounts import personal
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.handlers import endings, evaluated_updates, evaluation, hops
from hansa.controller.engine.job import Job
from hansa.controller.engine.subjects import OfHop, OfUpdate, OfVersion


def settle(job: Job, task: Task, report: Evaluation | None, now: float, trouble: str = "") -> list[Effect]:
    """Enter an evaluation's report, or the trouble that prevented it, and go on."""
    subject = job.state.subjects[task.id]
    job.finish(task.id)
    findings = versions.findings_of(job, subject, task.site)
    if report is None:
        findings.unevaluated[task.site] = trouble
    else:
        reports = job.state.reports.setdefault(subject.name, {})
        findings.examples += report.n - (reports[task.site].n if task.site in reports else 0)
        reports[task.site] = report
        findings.metrics = {}
        findings.evaluations.pop(task.site, None)
        findings.unevaluated.pop(task.site, None)
        if report.personal:
            findings.personal[task.site] = report.personal
    match subject:
        case OfVersion(version):
            _note_examples(job, findings, task.site, report)
            if report is not None:
                personal.note(job, task.site, report)
            return endings.consider(job, evaluation.settle(job, version), now)
        case OfHop(version, hop):
            _note_examples(job, findings, task.site, report)
            return hops.settle(job, version, hop)
        case OfUpdate(update):  # on validation data, which coverage does not count
            return evaluated_updates.settle(job, update, now)
    assert_never(subject)


def _note_examples(job: Job, findings: Findings, site: SiteName, report: Evaluation | None) -> None:
    """Note how many examples a site has; the total changes with it."""
    if report is None:
        return
    before = job.state.evaluator_examples.get(site)
    if findings.examples_total is not None and before is not None:
        findings.examples_total += report.n - before
    findings.measure_coverage()
    job.state.evaluator_examples[site] = report.n


def settle_departed(job: Job, site: SiteName, now: float) -> list[Effect]:
    """Settle all open evaluations of an evaluator that is gone."""
    effects: list[Effect] = []
    others = job.open_tasks.evaluations(site, OfUpdate, OfHop)
    of_versions = job.open_tasks.evaluations(site, OfVersion)  # last, because the job may close over one
    for task in (*others, *of_versions):
        if task.id in job.state.tasks:  # the job may have ended with the one before
            effects += settle(job, task, None, now, "the site left")
    return effects
