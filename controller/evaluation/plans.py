"""Evaluation plans: how the reports of many sites on a community model are combined into metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.bounds import SITES
from hansa.common.values.ids import SiteName
from hansa.common.values.results import OWN, Evaluation
from hansa.controller.evaluation.scores import (
    Shape,
    micro_f1_of_labels,
    pooled,
    shape_of,
    unlike,
    weighted_f1,
    weighted_f1_of_labels,
)
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.view import View


class _Every(EvalPlan):
    """All evaluators, or a sample of them, evaluate every n-th version; all evaluate the last one."""

    every: int = Field(
        1, ge=1, strict=True, description="evaluate every n-th version, and always the last one"
    )
    sites: int | None = Field(
        None,
        ge=1,
        le=SITES,
        strict=True,
        description="evaluators that are drawn for each version; none: all, who evaluate the last one anyway",
    )
    virtual: bool = Field(
        False, description="also evaluate the mean of travelling models between merges (pace redistribute)"
    )

    @property
    def midway(self) -> bool:
        """Whether the mean of travelling models is evaluated as well."""
        return self.virtual

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to evaluate between merges where no models travel."""
        if self.virtual and not rule.pace.travels:
            why = (
                f"pace {rule.pace.kind} has no travelling models whose mean could be evaluated between merges"
            )
            return [(("evaluate", "virtual"), why)]
        return []

    def due(self, state: Nothing, view: View) -> Sequence[SiteName]:
        """Return all connected evaluators."""
        return view.evaluators if view.version % self.every == 0 else ()

    def sample(self, sites: Sequence[SiteName], view: View) -> Sequence[SiteName] | None:
        """Draw some of the evaluators, others for each version."""
        if self.sites is None:
            return None
        if len(sites) <= self.sites:
            return sites
        chosen = view.rng("evaluate", view.version).choice(len(sites), self.sites, replace=False)
        return [sites[number] for number in sorted(chosen.tolist())]

    def odd(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[SiteName, str]:
        """Return the sites that count other classes or labels than most.

        The accuracy leaves them out, so the loss must leave them out as well.
        """
        shapes = {site: shape_of(report) for site, report in sorted(reports.items()) if report.n}
        usual = _usual(list(shapes.values()))
        return {site: unlike(shape, usual) for site, shape in shapes.items() if usual and shape != usual}


@register("evaluate", "pooled")
class Pooled(_Every):
    """Metrics over the examples of all sites together: a site counts by its examples."""

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Pool the sums."""
        return pool([report for _, report in sorted(reports.items())])


@register("evaluate", "by-site")
class BySite(_Every):
    """Pooled metrics and, as `…_by_site`, plain means over sites: small and large sites count the same."""

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Pool the sums, and average each site's own metrics."""
        ordered = [report for _, report in sorted(reports.items())]
        by_site = [pool([report]) for report in ordered if report.n]
        means: dict[str, float] = {}
        for name in sorted({name for metrics in by_site for name in metrics}):
            values = [metrics[name] for metrics in by_site if name in metrics]
            means[f"{name}_by_site"] = sum(values) / len(values)
        return pool(ordered) | means


def pool(reports: Sequence[Evaluation]) -> dict[str, float]:
    """Pool evaluations: sums over sites first, ratios last."""
    reports = [report for report in reports if report.n]
    total = sum(report.n for report in reports)
    if not total:
        return {}
    metrics = {"loss": sum(report.loss_sum for report in reports) / total} | _shares(alike(reports))
    for name in sorted({name for report in reports for name in report.metrics} - metrics.keys()):
        holders = [report for report in reports if name in report.metrics]
        metrics[name] = sum(r.metrics[name] * r.n for r in holders) / sum(r.n for r in holders)
    of_own_models = pool([report.own_model for report in reports if report.own_model is not None])
    return metrics | {f"{name}{OWN}": value for name, value in of_own_models.items()}


def _shares(reports: Sequence[Evaluation]) -> dict[str, float]:
    """Return accuracy and weighted F1; where examples may have several labels, also micro F1."""
    if not reports:
        return {}
    counts, (size, kind) = pooled(reports), shape_of(reports[0])
    if kind == "classes":
        return {"accuracy": int(np.trace(counts)) / int(counts.sum()), "weighted_f1": weighted_f1(counts)}
    predictions = size * sum(report.n for report in reports)
    wrong = counts[:, 1:].astype(object).sum()  # Python integers do not overflow
    return {
        "accuracy": (predictions - wrong) / predictions,
        "micro_f1": micro_f1_of_labels(counts),
        "weighted_f1": weighted_f1_of_labels(counts),
    }


def alike(reports: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the reports that count the same classes or labels as most do.

    One site must not hide the others' results. There are none if no number of classes or labels has a
    majority, or if most reports count nothing.
    """
    usual = _usual([shape_of(report) for report in reports])
    return [report for report in reports if usual and shape_of(report) == usual]


def _usual(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that has a majority; None if there is no such shape, or most reports count nothing."""
    ((usual, votes),) = Counter(shapes).most_common(1) or [((0, "classes"), 0)]
    return usual if usual[0] and 2 * votes > len(shapes) else None
