"""The best version so far. It is chosen by what evaluators find on validation data, never on test data.

Only versions whose metrics count are compared: those that were evaluated on enough examples. Of versions that
are equally good, the first to be known is the best.
"""

from hansa.common.values.history import Findings, Version
from hansa.common.values.settings.keep import BestSpec
from hansa.common.values.settings.metrics import USUAL, mode_of
from hansa.common.values.wording.words import suggestion
from hansa.controller.engine import versions
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Best

NO_VALIDATION = (
    "keep.best: no version is chosen, because test data must not choose one, and the evaluators have no"
    " validation data (validation.fraction)"
)


def consider(job: Job, record: Version) -> None:
    """Compare a version whose evaluation is over with the best one."""
    wanted, best = job.spec.keep.best, job.state.best
    if wanted is None or not record.covered:
        return
    findings = _choosing(record)
    if not findings.examples:
        if job.spec.evaluates_twice:
            _remark(job, NO_VALIDATION)
        return
    metric = _metric(wanted, findings)
    if metric not in findings.metrics:
        remark_unknown(job, "keep.best.metric", metric, findings)
        return
    rated = _rated(job, record)
    if best is not None and best.version == record.version:
        _replace(job, _best_kept(job, rated))  # a late report may have made it worse than another one
    elif rated is not None and (best is None or _is_better(rated, best) or _is_outdated(job, best, record)):
        _replace(job, rated)
    elif job.spec.stop.patience and best is not None and record.version > best.version:
        job.state.since_best.add(record.version)


def _choosing(record: Version) -> Findings:
    """Return the findings by which a version is chosen."""
    return record if record.validation is None else record.validation


def _metric(wanted: BestSpec, findings: Findings) -> str:
    return wanted.metric or next((name for name in USUAL if name in findings.metrics), USUAL[0])


def _rated(job: Job, record: Version) -> Best | None:
    """Return how good a version is; None if it does not count, or its metric is not a number."""
    wanted, findings = job.spec.keep.best, _choosing(record)
    if wanted is None or not record.covered:
        return None
    metric = _metric(wanted, findings)
    value = findings.metrics.get(metric)
    if value is None:
        return None
    score = -value if (wanted.mode or mode_of(metric)) == "min" else value
    return Best(version=record.version, metric=metric, value=value, score=score)


def _is_better(rated: Best, best: Best) -> bool:
    """Whether a version is better than another; one with an accuracy is better than those without."""
    return rated.score > best.score if rated.metric == best.metric else rated.metric == USUAL[0]


def _is_outdated(job: Job, best: Best, record: Version) -> bool:
    """Whether evaluators have joined since the best version, without which it would not have counted.

    What a few found in it cannot be compared with what all find now. Samples differ anyway.
    """
    found = job.state.history[best.version]
    if found.drawn is not None or record.drawn is not None:
        return False
    known = {
        site: n for site, n in job.state.evaluator_examples.items() if n and site not in job.held_out.test
    }
    covered = sum(n for site, n in known.items() if site in found.evaluations)
    return covered < job.rule.evaluate.min_coverage * sum(known.values())


def _best_kept(job: Job, rated: Best | None) -> Best | None:
    """Return the best of a version and those whose models are still kept."""
    history = job.state.history
    others = (_rated(job, history[version]) for version in sorted(job.state.saved))
    best = rated
    for other in filter(None, others):
        if best is None or _is_better(other, best):
            best = other
    return best


def _replace(job: Job, best: Best | None) -> None:
    """Make a version the best one, and count those after it that are no better."""
    state, later = job.state, set[int]()
    if best is not None and job.spec.stop.patience:
        known = state.since_best | ({state.best.version} if state.best else set())
        for version in known:
            if version > best.version:
                rated = _rated(job, state.history[version])
                later |= set() if rated is not None and _is_better(rated, best) else {version}
    versions.keep_best(job, best)
    state.since_best = later


def remark_unknown(job: Job, field: str, metric: str, findings: Findings) -> None:
    """Remark that nobody reports a metric that the job names."""
    known = sorted(findings.metrics)
    names = suggestion(metric, known) or f"; they have {', '.join(known)}"
    _remark(job, f"{field}: versions do not have {metric}{names}")


def _remark(job: Job, remark: str) -> None:
    """Tell operators, once."""
    if remark not in job.state.remarks:
        job.state.remarks.append(remark)


def patience_lost(job: Job) -> str:
    """Say that a job has waited long enough for a better version; else nothing."""
    best, patience = job.state.best, job.spec.stop.patience
    if patience is None or best is None or len(job.state.since_best) < patience:
        return ""
    what = "version is" if patience == 1 else f"{patience} versions are"
    return (
        f"patience ran out: the last {what} no better than version {best.version},"
        f" whose {best.metric} is {best.value:.4f}"
    )
