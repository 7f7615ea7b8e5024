"""Where every evaluation is settled, whatever its subject: a report came, or it is known that none will."""

from typing import assert_never

from hansa.common.values.history import Findings
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Task
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import endings, evaluation, hops, updates
from hansa.controller.engine.subjects import OfHop, OfUpdate, OfVersion


def settle(job: Job, task: Task, report: Evaluation | None, now: float, trouble: str = "") -> list[Effect]:
    """Enter what came of an evaluation, a report or the reason why there is none, and go on."""
    subject = job.state.subjects[task.id]
    job.finish(task.id)
    findings = job.findings(subject)
    if report is None:
        findings.unevaluated[task.site] = trouble
    else:
        reports = job.state.reports.setdefault(subject.name, {})
        findings.examples += report.n - (reports[task.site].n if task.site in reports else 0)
        reports[task.site] = report
        findings.metrics = {}
        findings.unevaluated.pop(task.site, None)
    match subject:
        case OfVersion(version):
            _note_examples(job, findings, task.site, report)
            return endings.consider(job, evaluation.evaluated(job, version), now)
        case OfHop(version, hop):
            _note_examples(job, findings, task.site, report)
            return hops.evaluated(job, version, hop)
        case OfUpdate(update):  # on validation data, which coverage does not count
            return updates.evaluated(job, update, now)
    assert_never(subject)


def _note_examples(job: Job, findings: Findings, site: SiteName, report: Evaluation | None) -> None:
    """Take note of how many examples a site has; the total changes with it."""
    if report is None:
        return
    before = job.state.evaluator_examples.get(site)
    if findings.examples_total is not None and before is not None:
        findings.examples_total += report.n - before
    job.state.evaluator_examples[site] = report.n


def evaluator_left(job: Job, site: SiteName, now: float) -> list[Effect]:
    """Settle what the evaluator of a site has not reported: it is gone."""
    effects: list[Effect] = []
    others, versions = (OfUpdate, OfHop), (OfVersion,)  # versions last: the job may close over one
    for task in (*job.open_tasks.evaluations(site, *others), *job.open_tasks.evaluations(site, *versions)):
        if task.id in job.state.tasks:  # the job may have ended over the one before
            effects += settle(job, task, None, now, "the site left")
    return effects
