"""Coverage: on how many of all examples a model was evaluated, and which sites are missing.

Every evaluator counts that has been connected at any time since the job began to run, with the number of
examples in its last report. Until each of them has reported at least once, the total is unknown, and no
version counts as evaluated on all examples. The job's test sites are counted apart, and are not needed for a
version to count. If evaluators are drawn to stand for all, only those count who were drawn for the version.
"""

from collections.abc import Mapping

from hansa.common.values.history import Findings, Measured, Version
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluate
from hansa.controller.engine.job import Job
from hansa.controller.engine.subjects import OfVersion, Subject
from hansa.controller.engine.versions import findings_of_test_sites


def account(job: Job, record: Version, awaited: bool) -> None:
    """Record what a version was evaluated on, and whether that is enough for its metrics to count."""
    state = job.state
    total = tally(job, record, OfVersion(record.version))
    enough = total > 0 and record.examples / total >= job.rule.evaluate.min_coverage
    record.covered = enough and not awaited
    if record.covered:
        state.covered = max(record.version, state.covered or 0)
    elif state.covered == record.version:  # it was evaluated again, and a new evaluator has not reported
        state.covered = next((each.version for each in reversed(state.history) if each.covered), None)


def tally(job: Job, findings: Measured, subject: Subject) -> int:
    """Record which sites are missing and how many examples there are; return an estimate of that number.

    The estimate is without the job's test sites.
    """
    known, test = job.state.evaluator_examples, job.held_out.test
    if not test:
        return _tally(job, findings, subject, known)
    _tally(
        job, findings_of_test_sites(findings), subject, {site: n for site, n in known.items() if site in test}
    )
    return _tally(job, findings, subject, {site: n for site, n in known.items() if site not in test})


def _tally(job: Job, findings: Findings, subject: Subject, known: Mapping[SiteName, int | None]) -> int:
    """Do the same for some of the evaluators, with the numbers of their examples.

    An evaluator that has never reported is assumed to have as many examples as the largest one. So a version
    can count without it if `min_coverage` is below 1, and cannot if it is 1.
    """
    pending = job.open_tasks.evaluators(subject) & known.keys()
    if findings.drawn is None:
        for site in sorted(known.keys() - job.state.reports.get(subject.name, {}).keys() - pending):
            findings.unevaluated.setdefault(site, why_not_asked(job, site))
    sizes = [known[SiteName(site)] for site in findings.unevaluated.keys() | pending]
    known_total = findings.examples + sum(size for size in sizes if size is not None)
    findings.examples_total = None if None in sizes else known_total
    findings.measure_coverage()
    if None not in sizes:
        return known_total
    largest = max((size for size in known.values() if size is not None), default=0)
    return known_total + sizes.count(None) * largest


def why_not_asked(job: Job, site: SiteName) -> str:
    """Say why an evaluator has no task for the newest version."""
    if site not in job.state.evaluators:
        return "not connected"
    busy = [
        task.work.version
        for task in job.open_tasks.evaluations(site, OfVersion)
        if isinstance(task.work, Evaluate)
    ]
    return f"still evaluating version {busy[0]}" if busy else "not asked"
