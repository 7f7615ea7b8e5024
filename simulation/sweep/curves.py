"""The curves of a sweep as pictures: the mean over repetitions with a band from the lowest to the highest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.common.data.pictures import COLORS, FAINT, INK, PAPER
from hansa.common.values.errors import InvalidInput
from hansa.common.values.sizes import amount
from hansa.common.values.words import counted
from hansa.simulation.sweep.names import simple
from hansa.simulation.sweep.results import Result, VersionRow
from hansa.simulation.sweep.table import Row, Table

ENDINGS = (".svg", ".png")
ACROSS = 3  # panels in a row
PANEL = (5.6, 3.5)  # inches
Abscissa = Callable[[VersionRow], float]
ABSCISSAS: dict[str, Abscissa] = {
    "round": lambda version: version.round,
    "bytes": lambda version: version.bytes_up + version.bytes_down,
}
GRID = "#e4e7eb"


@dataclass(frozen=True)
class Line:
    """One combination's curve."""

    label: str
    x: list[float]
    mean: list[float]
    least: list[float]
    most: list[float]
    band: bool  # whether there are several repetitions


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
        label,
        [fmean(x(curve[version]) for curve in curves) for version in common],
        [fmean(each) for each in values],
        [min(each) for each in values],
        [max(each) for each in values],
        len(curves) > 1,
    )


def draw_curves(table: Table, folder: Path) -> list[Path]:
    """Draw every metric over rounds and over bytes, as SVG and PNG; return the files."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InvalidInput("curves need matplotlib: pip install 'hansa[data]'") from None
    mpl.use("Agg")
    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "svg.hashsalt": "hansa",
        "svg.fonttype": "none",
    }
    files: list[Path] = []
    with mpl.rc_context(style):
        for metric in table.metrics:
            for abscissa, x in ABSCISSAS.items():
                figure = _figure(table, metric, abscissa, x)
                if figure is None:
                    continue
                for ending in ENDINGS:
                    files.append(folder / f"{simple(metric)}-by-{abscissa}{ending}")
                    figure.savefig(files[-1], dpi=160, metadata={"Date": None} if ending == ".svg" else None)
    return files


def _figure(table: Table, metric: str, abscissa: str, x: Abscissa) -> Any:
    """Return a figure with a panel for each combination of all axes except the first; None without curves."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, ...], list[Row]] = {}
    for row in table.rows:
        panels.setdefault(row.labels[1:], []).append(row)
    curves = {
        labels: [line for row in rows if (line := line_of(_label(row), row.results, metric, x))]
        for labels, rows in panels.items()
    }
    curves = {labels: lines for labels, lines in curves.items() if lines}
    if not curves:
        return None
    drawn = {line.label for lines in curves.values() for line in lines}
    varied = [point.label for point in table.plan.varied[0].points] if table.plan.varied else [""]
    colors = _colors([label for label in varied if label in drawn])
    across = 2 if len(curves) == 4 else min(ACROSS, len(curves))
    down = -(-len(curves) // across)
    width = 1.0 + PANEL[0] * across
    columns, legend = _room_for_legend([*colors], width)
    height = 1.05 + legend + PANEL[1] * down
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (labels, lines) in zip(grid.flat, curves.items(), strict=False):
        _panel(axes, lines, colors, _caption(table, labels))
    for axes in list(grid.flat)[len(curves) :]:
        axes.set_visible(False)
    _label_axes(grid, len(curves), metric, abscissa)
    _head(figure, table, metric, width, height)
    if table.plan.varied:
        _legend(figure, colors, columns)
    figure.subplots_adjust(
        left=0.72 / width,
        right=1 - 0.25 / width,
        top=1 - (0.85 + legend) / height,
        bottom=0.55 / height,
        wspace=0.08,
        hspace=0.2,
    )
    return figure


def _label(row: Row) -> str:
    return row.labels[0] if row.labels else ""


def _caption(table: Table, labels: Sequence[str]) -> str:
    names = [axis.name for axis in table.plan.varied[1:]]
    return ", ".join(f"{name} = {label}" for name, label in zip(names, labels, strict=True))


def _colors(labels: Sequence[str]) -> dict[str, Any]:
    """Return a colour for each line: colours that can be told apart, or shades where there are too many."""
    import matplotlib as mpl

    if len(labels) <= len(COLORS) // 2:
        return dict(zip(labels, COLORS, strict=False))
    shades = mpl.colormaps["viridis"]
    return {label: shades(0.95 * at / (len(labels) - 1)) for at, label in enumerate(labels)}


def _panel(axes: Any, lines: Sequence[Line], colors: dict[str, Any], caption: str) -> None:
    for line in lines:
        color, dots = colors[line.label], {"marker": "o", "markersize": 3} if len(line.x) < 12 else {}
        if line.band:
            axes.fill_between(line.x, line.least, line.most, color=color, alpha=0.2, linewidth=0)
        axes.plot(line.x, line.mean, color=color, linewidth=1.7, solid_capstyle="round", **dots)
    axes.set_title(caption, loc="left", color=INK, fontsize=9)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, colors=FAINT, labelsize=8, labelcolor=INK)
    axes.margins(x=0.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def _label_axes(grid: Any, panels: int, metric: str, abscissa: str) -> None:
    """Label the outer axes; a panel above an empty place is an outer one, too."""
    from matplotlib.ticker import MaxNLocator

    across = grid.shape[1]
    for at, axes in enumerate(list(grid.flat)[:panels]):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
        if abscissa == "bytes":
            axes.xaxis.set_major_formatter(lambda value, _: amount(value))
        if at + across >= panels:
            axes.set_xlabel("bytes sent, up and down" if abscissa == "bytes" else "round", color=INK)
            axes.tick_params(labelbottom=True)
        if at % across == 0:
            axes.set_ylabel(metric, color=INK)


def _head(figure: Any, table: Table, metric: str, width: float, height: float) -> None:
    spec, repeated = table.plan.spec, table.plan.repeated
    counts = [counted(len(axis.points), axis.name.rpartition(".")[2]) for axis in repeated if axis.points[1:]]
    about = (
        f"mean over {' and '.join(counts)}; bands from the lowest to the highest"
        if counts
        else "one run each"
    )
    place = 0.2 / width
    figure.text(
        place, 1 - 0.12 / height, spec.title or spec.name, color=INK, fontsize=11, fontweight="bold", va="top"
    )
    figure.text(place, 1 - 0.36 / height, f"{metric}: {about}", color=FAINT, fontsize=9, va="top")


def _room_for_legend(labels: Sequence[str], width: float) -> tuple[int, float]:
    """Return the number of columns of a legend and its height, in inches."""
    columns = max(1, int((width - 0.4) / (0.6 + 0.07 * max(map(len, labels)))))
    return min(columns, len(labels)), 0.18 * -(-len(labels) // columns)


def _legend(figure: Any, colors: dict[str, Any], columns: int) -> None:
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    figure.legend(
        handles=[Line2D([], [], color=color, linewidth=2, label=label) for label, color in colors.items()],
        loc="upper left",
        bbox_to_anchor=(0.12 / width, 1 - 0.5 / height),
        ncols=columns,
        fontsize=8.5,
        frameon=False,
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.4,
    )
