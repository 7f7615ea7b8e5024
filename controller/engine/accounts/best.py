"""The best version so far. It is chosen by what evaluators find on validation data, never on test data.

Only versions whose metrics count are compared: those that were evaluated on enough examples. Of versions that
are equally good, the first to be known is the best.
"""

from hansa.common.values.history import Findings, Version
from hansa.common.values.metrics import USUAL, mode_of
from hansa.common.values.words import suggestion
from hansa.controller.engine import versions
from hansa.controller.engine.job import Job
from hansa.controller.engine.state import Best

NO_VALIDATION = (
    "keep.best: no version is chosen, because test data must not choose one, and the evaluators have no"
    " validation data (validation.fraction)"
)


def consider(job: Job, record: Version) -> None:
    """Compare a version whose evaluation is over with the best one."""
    keep, state = job.spec.keep, job.state
    if keep.best is None or not record.covered:
        return
    findings = record if record.validation is None else record.validation
    if not findings.examples:
        if job.spec.evaluates_twice:
            _remark(job, NO_VALIDATION)
        return
    metric = keep.best.metric or next((name for name in USUAL if name in findings.metrics), USUAL[0])
    if metric not in findings.metrics:
        remark_unknown(job, "keep.best.metric", metric, findings)
        return
    value = findings.metrics[metric]
    score = -value if value is not None and (keep.best.mode or mode_of(metric)) == "min" else value
    if value is not None and score is not None and _is_better(state.best, record.version, metric, score):
        versions.keep_best(job, Best(version=record.version, metric=metric, value=value, score=score))
    elif job.spec.stop.patience and state.best is not None and record.version > state.best.version:
        state.since_best.add(record.version)


def _is_better(best: Best | None, version: int, metric: str, score: float) -> bool:
    """Whether a version is better than the best, or is the best with a new value."""
    return best is None or best.metric != metric or best.version == version or score > best.score


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
