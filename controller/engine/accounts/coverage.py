"""Coverage: how many examples of how many a model was evaluated on, and who is missing.

All evaluators count that are connected or were at any time since the job began to run, each with the number
of examples that it reported last. As long as one has never reported, nobody knows how many there are, and no
version was evaluated on all of them.
"""

from collections.abc import Set as AbstractSet

from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluate, Evaluation
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Findings, VersionRecord


def enter(job: Job, findings: Findings, site: SiteName, found: Evaluation) -> None:
    """Enter a report; its site may have more or fewer examples than before, so there are as many more or fewer."""
    before = job.state.evaluator_examples.get(site)
    if findings.total is not None and before is not None:
        findings.total += found.n - before
    findings.add(site, found)
    job.state.evaluator_examples[site] = found.n


def account(job: Job, record: VersionRecord, awaited: bool) -> None:
    """Enter what a version was evaluated on, and whether that is enough for its metrics to count."""
    state = job.state
    everything = tally(job, record, job.desk.evaluators(record.version))
    enough = everything > 0 and record.examples / everything >= job.rule.evaluate.min_coverage
    record.covered = enough and not awaited
    if record.covered:
        state.covered = max(record.version, state.covered or 0)
    elif state.covered == record.version:  # it was evaluated once more, and somebody who is new is missing
        state.covered = next((each.version for each in reversed(state.history) if each.covered), None)


def tally(job: Job, findings: Findings, pending: AbstractSet[SiteName] = frozenset()) -> int:
    """Enter who is missing and how many examples there are; return the latter, at least.

    An evaluator that has never reported is taken to have as many as the largest: with `min_coverage` below 1
    a version can count without it, and with 1 it cannot.
    """
    known = job.state.evaluator_examples
    for site in sorted(known.keys() - findings.reports.keys() - pending):
        findings.unevaluated.setdefault(site, _why_not_asked(job, site))
    sizes = [known[site] for site in findings.unevaluated.keys() | pending]
    told = findings.examples + sum(size for size in sizes if size is not None)
    findings.total = None if None in sizes else told
    return told + sizes.count(None) * max((size for size in known.values() if size is not None), default=0)


def _why_not_asked(job: Job, site: SiteName) -> str:
    if site not in job.state.evaluators:
        return "not connected"
    busy = [task.work.version for task in job.desk.evaluations(site) if isinstance(task.work, Evaluate)]
    return f"still evaluating version {busy[0]}" if busy else "not asked"
