"""The curves of a sweep: the mean over repetitions with a band from the lowest to the highest."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from hansa.common.drawing.markup import svg_file
from hansa.common.drawing.style import PICTURES, THEMES
from hansa.common.report.progress import titled
from hansa.common.report.sweep import Line, Panel, drawing_of
from hansa.common.values.wording.words import counted
from hansa.simulation.sweep.names import simple
from hansa.simulation.sweep.results import Result, VersionRow
from hansa.simulation.sweep.table import Row, Table

Abscissa = Callable[[VersionRow], float]
ABSCISSAS: dict[str, Abscissa] = {
    "round": lambda version: version.round,
    "bytes": lambda version: version.bytes_up + version.bytes_down,
}


def line_of(label: str, results: Sequence[Result], metric: str, x: Abscissa) -> Line | None:
    """Return the curve of some repetitions; a version counts where all that have completed evaluated it."""
    curves = [
        {version.version: version for version in result.versions if metric in version.metrics}
        for result in results
        if result.status == "completed"
    ]
    curves = [curve for curve in curves if curve]
    common = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not common:
        return None
    values = [[curve[version].metrics[metric] for curve in curves] for version in common]
    return Line(
        label=label,
        x=[fmean(x(curve[version]) for curve in curves) for version in common],
        mean=[fmean(each) for each in values],
        least=[min(each) for each in values],
        most=[max(each) for each in values],
        repeated=len(curves) > 1,
    )


def panels_of(table: Table) -> Iterator[Panel]:
    """Yield a panel for each metric, abscissa and combination of all axes except the first."""
    rows: dict[tuple[str, ...], list[Row]] = {}
    for row in table.rows if table.metrics else []:
        rows.setdefault(row.labels[1:], []).append(row)
    for metric in table.metrics:
        for over, x in ABSCISSAS.items():
            for labels, several in rows.items():
                found = (line_of(_label(row), row.results, metric, x) for row in several)
                lines = [line for line in found if line]
                if lines:
                    yield Panel(metric=metric, over=over, caption=_caption(table, labels), lines=lines)


def about_curves(table: Table) -> str:
    """Say what curves are means over."""
    repeated = [axis for axis in table.plan.repeated if axis.points[1:]]
    counts = [counted(len(axis.points), axis.name.rpartition(".")[2]) for axis in repeated]
    if not counts:
        return "One run each."
    return f"Mean over {' and '.join(counts)}; bands from the lowest to the highest."


def draw_curves(table: Table, folder: Path) -> list[Path]:
    """Draw every metric over rounds and over bytes as SVG; return the files."""
    spec = table.plan.spec
    pictures: dict[tuple[str, str], list[Panel]] = {}
    for panel in panels_of(table):
        pictures.setdefault((panel.metric, panel.over), []).append(panel)
    files: list[Path] = []
    for (metric, over), parts in pictures.items():
        files.append(folder / f"{simple(metric)}-by-{over}.svg")
        drawing = drawing_of(spec.title or spec.name, f"{titled(metric)}. {about_curves(table)}", parts)
        files[-1].write_text(svg_file(drawing, THEMES, PICTURES), encoding="utf-8")
    return files


def _label(row: Row) -> str:
    return row.labels[0] if row.labels else ""


def _caption(table: Table, labels: Sequence[str]) -> str:
    names = [axis.name for axis in table.plan.varied[1:]]
    return ", ".join(f"{name} = {label}" for name, label in zip(names, labels, strict=True))
