"""Evaluation plans: what the findings of many sites on a community model say together."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.view import View
from hansa.controller.rules.scores import Shape, micro_f1_of_labels, pooled, shape_of, unlike


class _Every(EvalPlan):
    """Every evaluator is asked for every so many versions, and for the last one."""

    every: int = Field(
        1, ge=1, strict=True, description="evaluate every so many versions, and always the last one"
    )
    virtual: bool = Field(
        False, description="also the mean of travelling models, between merges (pace redistribute)"
    )

    @property
    def midway(self) -> bool:
        """Whether the mean of travelling models is evaluated, too."""
        return self.virtual

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to look for a mean between merges where there is none."""
        if self.virtual and not rule.pace.travels:
            why = (
                f"pace {rule.pace.kind} has no travelling models between merges whose mean could be evaluated"
            )
            return [(("evaluate", "virtual"), why)]
        return []

    def due(self, state: Nothing, view: View) -> Sequence[SiteName]:
        """Ask all who attend."""
        return view.evaluators if view.version % self.every == 0 else ()

    def odd(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[SiteName, str]:
        """Name those who count something else than most: the accuracy is without them, so the loss must be, too."""
        shapes = {site: shape_of(report) for site, report in sorted(reports.items()) if report.n}
        usual = _usual(list(shapes.values()))
        return {site: unlike(shape, usual) for site, shape in shapes.items() if usual and shape != usual}


@register("evaluate", "pooled")
class Pooled(_Every):
    """Metrics are over the examples of all sites together: a site counts by its examples."""

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Pool the sums."""
        return pool([report for _, report in sorted(reports.items())])


@register("evaluate", "by-site")
class BySite(_Every):
    """Pooled metrics and, as `…_by_site`, their plain means over sites: a small site counts as much as a large one."""

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Pool the sums, and take each site's metrics alone."""
        ordered = [report for _, report in sorted(reports.items())]
        alone = [pool([report]) for report in ordered if report.n]
        means: dict[str, float] = {}
        for name in sorted({name for found in alone for name in found}):
            values = [found[name] for found in alone if name in found]
            means[f"{name}_by_site"] = sum(values) / len(values)
        return pool(ordered) | means


def pool(reports: Sequence[Evaluation]) -> dict[str, float]:
    """Pool evaluations: sums over sites first, ratios last."""
    reports = [report for report in reports if report.n]
    total = sum(report.n for report in reports)
    if not total:
        return {}
    found = {"loss": sum(report.loss_sum for report in reports) / total} | _shares(_alike(reports))
    for name in sorted({name for report in reports for name in report.metrics} - found.keys()):
        holders = [report for report in reports if name in report.metrics]
        found[name] = sum(r.metrics[name] * r.n for r in holders) / sum(r.n for r in holders)
    return found


def _shares(reports: Sequence[Evaluation]) -> dict[str, float]:
    """Return the share of examples that are right; where these may have several labels, of labels, and micro F1."""
    if not reports:
        return {}
    counts, (size, kind) = pooled(reports), shape_of(reports[0])
    if kind == "classes":
        return {"accuracy": int(np.trace(counts)) / int(counts.sum())}
    said = size * sum(report.n for report in reports)
    wrong = counts[:, 1:].astype(object).sum()  # a whole number of any size
    return {"accuracy": (said - wrong) / said, "micro_f1": micro_f1_of_labels(counts)}


def _alike(reports: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the reports that count what most count, classes or labels: one site must not hide what others found.

    None if there is no such number of them, or most count nothing.
    """
    usual = _usual([shape_of(report) for report in reports])
    return [report for report in reports if usual and shape_of(report) == usual]


def _usual(shapes: Sequence[Shape]) -> Shape | None:
    """Return what most count; none if there is no such number of them, or most count nothing."""
    ((usual, votes),) = Counter(shapes).most_common(1) or [((0, "classes"), 0)]
    return usual if usual[0] and 2 * votes > len(shapes) else None
