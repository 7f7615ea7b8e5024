"""The table of a sweep: for each combination the mean over repetitions, and its margin to the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hansa.simulation.sweep.plan import Plan
from hansa.simulation.sweep.results import MEASURES, Result, measure, metrics_of, target_for
from hansa.simulation.sweep.statistics import Margin, Summary, margin, summarise

Labels = tuple[str, ...]
Measured = Mapping[str, float | None]  # by measure


@dataclass(frozen=True)
class Cell:
    """One measure of one metric of a combination."""

    summary: Summary | None  # None: no run has it
    margin: Margin | None  # None: it is the baseline, or there is no pair


@dataclass(frozen=True)
class Row:
    """A combination apart from repetitions."""

    labels: Labels
    results: tuple[Result, ...]
    is_baseline: bool
    cells: Mapping[str, Mapping[str, Cell]]  # by metric and measure

    def count(self, status: str) -> int:
        """Return how many of its runs have ended like this."""
        return sum(result.status == status for result in self.results)


class Table:
    """The rows of a sweep, from the results that there are."""

    def __init__(self, plan: Plan, results: Sequence[Result]) -> None:
        self.plan, self.results = plan, tuple(results)
        self.metrics = metrics_of(plan.spec, results)

    @cached_property
    def measured(self) -> dict[Labels, dict[str, Measured]]:
        """What is measured of each run, by the run's labels and by metric."""
        return {
            result.run.labels: {
                metric: measure(
                    result, metric, self.plan.spec, target_for(metric, self.plan.spec, self.metrics)
                )
                for metric in self.metrics
            }
            for result in self.results
        }

    def measures(self, result: Result) -> Mapping[str, Measured]:
        """Return what is measured of a run, by metric."""
        return self.measured[result.run.labels]

    @cached_property
    def rows(self) -> list[Row]:
        """The rows in the order of the file."""
        results = {result.run.labels: result for result in self.results}
        rows = {labels: [results[run.labels] for run in runs] for labels, runs in self.plan.rows().items()}
        return [self._row(labels, rows) for labels in rows]

    def _row(self, labels: Labels, rows: Mapping[Labels, Sequence[Result]]) -> Row:
        other = self.plan.compared_with(labels)
        is_baseline = other == labels
        compared = [] if is_baseline else rows.get(other, [])
        cells = {
            metric: {name: self._cell(metric, name, rows[labels], compared) for name in MEASURES}
            for metric in self.metrics
        }
        return Row(labels, tuple(rows[labels]), is_baseline, cells)

    def _cell(self, metric: str, name: str, own: Sequence[Result], compared: Sequence[Result]) -> Cell:
        values = self._values(metric, name, own)
        return Cell(summarise(list(values.values())), margin(values, self._values(metric, name, compared)))

    def _values(self, metric: str, name: str, results: Sequence[Result]) -> dict[Labels, float | None]:
        return {self.plan.repetition(result.run): self.measures(result)[metric][name] for result in results}

    def documents(self) -> list[dict[str, Any]]:
        """Return the rows for programs."""
        return [
            {
                "combination": dict(zip([axis.name for axis in self.plan.varied], row.labels, strict=True)),
                "baseline": row.is_baseline,
                "runs": len(row.results),
                **{status: row.count(status) for status in ("completed", "failed", "missing")},
                "metrics": {
                    metric: {name: _document(cell) for name, cell in cells.items()}
                    for metric, cells in row.cells.items()
                },
            }
            for row in self.rows
        ]


def _document(cell: Cell) -> dict[str, Any] | None:
    if cell.summary is None:
        return None
    return asdict(cell.summary) | {"margin": asdict(cell.margin) if cell.margin else None}
