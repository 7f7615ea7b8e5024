"""Details of an evaluation: what each evaluator found, and the counts of all together, for the history."""

from collections.abc import Mapping

from hansa.common.values.history import LABELS, MATRIX, Findings, SiteEvaluation
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.controller.evaluation.plans import alike, pool
from hansa.controller.evaluation.scores import by_class, pooled, shape_of


def enter(findings: Findings, reports: Mapping[SiteName, Evaluation]) -> None:
    """Enter reports that fit one another into the findings; those that are entered already stay."""
    known = findings.evaluations
    findings.evaluations = {
        site: known.get(site) or SiteEvaluation(examples=reports[site].n, metrics=pool([reports[site]]))
        for site in sorted(reports)
    }
    _enter_counts(findings, reports)


def _enter_counts(findings: Findings, reports: Mapping[SiteName, Evaluation]) -> None:
    """Enter the confusion matrix of all examples, or the counts of each label."""
    counting = alike([report for report in reports.values() if report.n])
    size, kind = shape_of(counting[0]) if counting else (0, "classes")
    findings.confusion, findings.labels = [], []
    if not 0 < size <= LABELS:
        return
    counts = pooled(counting)
    if kind == "labels":
        findings.labels = counts.tolist()
    elif size <= MATRIX:
        findings.confusion = counts.tolist()
    else:
        findings.labels = by_class(counts).tolist()
