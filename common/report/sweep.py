"""The report of a sweep: what was compared, tables, curves, and every run with its own report."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from pydantic import BaseModel, ValidationError

from hansa import __version__
from hansa.common.drawing.curves import curves
from hansa.common.drawing.markup import Child, tag
from hansa.common.drawing.panels import panels
from hansa.common.drawing.scale import BYTES, Axis
from hansa.common.drawing.style import COLORS
from hansa.common.drawing.thinning import Series
from hansa.common.report.layout import Section, facts, figure, figures, notice, table, tile, whole_page
from hansa.common.report.material import PAGE
from hansa.common.report.overview import duration
from hansa.common.report.progress import titled
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import cleaned, counted

SWEEP = "sweep.json"
AXES = {"round": Axis("round", whole=True), "bytes": Axis("bytes sent, up and down", BYTES.form, zero=True)}
NAMED = 2 * COLORS  # curves of a panel that are all named


class Line(BaseModel):
    """A combination's curve: the mean over repetitions, with the lowest and the highest."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]
    repeated: bool  # whether there are several repetitions


class Panel(BaseModel):
    """The curves of a metric that have all axes but the first in common."""

    metric: str
    over: str  # round or bytes
    caption: str
    lines: Sequence[Line]


class Lines(BaseModel):
    """A table as it is printed."""

    metric: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Run(BaseModel):
    """One run of a sweep."""

    combination: Mapping[str, Any]
    status: str
    reason: str = ""
    folder: str = ""
    seconds: float = 0.0


class Sweep(BaseModel):
    """What sweep.json says."""

    sweep: str
    title: str = ""
    hansa: str
    way: str
    axes: Mapping[str, Sequence[str]]
    over: Sequence[str]
    baseline: Mapping[str, str]
    metrics: Sequence[str]
    minimised: Sequence[str] = ()
    about: str = ""  # what the curves are means over
    tables: Sequence[Lines]
    remarks: Sequence[str] = ()
    curves: Sequence[Panel]
    runs: Sequence[Run]


def read_sweep(folder: Path) -> Sweep:
    """Read what `hansa sweep` has left in a folder."""
    try:
        return Sweep.model_validate(cleaned(json.loads((folder / SWEEP).read_bytes())))
    except (OSError, ValueError, ValidationError, RecursionError):
        raise InvalidInput(
            f"{folder / SWEEP}: not the results of a sweep of this version of Hansa;"
            " `hansa sweep FILE --show` writes them anew"
        ) from None


def sweep_page(sweep: Sweep) -> str:
    """Return the report of a sweep as one HTML file; runs have reports of their own in the same folder."""
    return whole_page(
        f"{sweep.title or sweep.sweep}: report",
        [*_head(sweep), *_failures(sweep)],
        [*(_of_metric(sweep, metric) for metric in sweep.metrics), _about(sweep), _runs(sweep)],
        f"Made by Hansa {__version__}. This file is complete: it loads nothing and runs nothing."
        f" {SWEEP} beside it has all numbers.",
    )


def _head(sweep: Sweep) -> list[Element]:
    done = sum(run.status == "completed" for run in sweep.runs)
    factors = " × ".join(f"{name} ({len(labels)})" for name, labels in sweep.axes.items())
    summary = (
        f"{counted(len(sweep.runs), 'run')}" + (f": {factors}" if factors else "") + f", by {sweep.way}."
    )
    first = next((each for each in sweep.tables if each.rows), None)
    return [
        tag("p", f"Sweep · {sweep.sweep}", class_="kicker"),
        tag("h1", sweep.title or sweep.sweep),
        tag("p", summary, class_="summary"),
        tag(
            "dl",
            tile("completed", f"{done:,}", f"of {len(sweep.runs):,} runs"),
            tile("compared", f"{len(first.rows) if first else 0:,}", "combinations"),
            tile("repetitions", f"{_repetitions(sweep):,}", _over(sweep)),
            tile("time", duration(sum(run.seconds for run in sweep.runs)), "all runs together"),
            class_="tiles",
        ),
    ]


def _over(sweep: Sweep) -> str:
    varied = [name for name in sweep.over if len(sweep.axes.get(name, ())) > 1]
    return f"over {' and '.join(varied)}" if varied else ""


def _repetitions(sweep: Sweep) -> int:
    product = 1
    for name in sweep.over:
        product *= max(len(sweep.axes.get(name, ())), 1)
    return product


def _failures(sweep: Sweep) -> list[Element]:
    failed = [run for run in sweep.runs if run.status == "failed"]
    missing = sum(run.status == "missing" for run in sweep.runs)
    lines = [f"{_named(run)}: {run.reason}" for run in failed[:10]]
    lines += [f"and {counted(len(failed) - 10, 'more run')}"] if len(failed) > 10 else []
    drawn = [notice("bad", f"{counted(len(failed), 'run')} failed", *lines)] if failed else []
    if missing:
        drawn.append(notice("warn", f"{counted(missing, 'run')} missing", "The same command makes them."))
    return drawn


def _named(run: Run) -> str:
    return ", ".join(f"{name} = {value}" for name, value in run.combination.items()) or "the job"


def _of_metric(sweep: Sweep, metric: str) -> Section:
    parts: list[Element] = []
    for each in sweep.tables:
        if each.metric == metric:
            words = range(next((at for at, name in enumerate(each.columns) if name == "runs"), 1))
            cells = [[_ranged(cell) for cell in row] for row in each.rows]
            parts.append(table(each.columns, cells, words=words))
    shown: list[list[Element]] = []
    for over in AXES:
        alike = [panel for panel in sweep.curves if (panel.metric, panel.over) == (metric, over)]
        drawn = []
        for panel in alike:
            name = ", ".join(filter(None, [f"{titled(metric)} by {over}", panel.caption]))
            drawn.append(figure(name, picture_of(panel, alike), sweep.about))
        shown.append(drawn)
    if all(len(drawn) < 2 for drawn in shown):
        shown = [[each for drawn in shown for each in drawn]]  # two pictures of one metric are side by side
    for drawn in shown:
        parts += figures(*drawn)
    less = "Less is better. " if metric in sweep.minimised else ""
    base = ", ".join(f"{name} = {label}" for name, label in sweep.baseline.items())
    lead = f"{less}Margins are to {base}, repetition by repetition." if base else less.strip()
    return Section(f"metric-{list(sweep.metrics).index(metric)}", titled(metric), lead, parts)


def _ranged(cell: str) -> Child:
    """Return a cell with its deviation or range below its value: a table of both would not fit on a page."""
    found = re.match(r"([^±(]+) ([±(].*)", cell)
    return [found[1], tag("small", found[2])] if found else cell


def picture_of(panel: Panel, alike: Sequence[Panel]) -> Element:
    """Draw a panel with the axes and colours of all panels that it stands beside."""
    order = list(dict.fromkeys(line.label for each in alike for line in each.lines))
    lines = [line for each in alike for line in each.lines]
    places = [place for line in lines for place in line.x]
    series = [
        Series(
            line.label,
            list(zip(line.x, line.mean, strict=True)),
            list(zip(line.x, line.least, line.most, strict=True)) if line.repeated else (),
            color=order.index(line.label),
        )
        for line in panel.lines
    ]
    y = Axis(
        panel.metric,
        logarithmic="loss" in panel.metric,
        least=min(value for line in lines for value in line.least),
        most=max(value for line in lines for value in line.most),
    )
    x = replace(AXES[panel.over], least=min(places), most=max(places))
    return curves(f"{panel.metric} by {panel.over}", series, x, y, pale_beyond=NAMED)


def drawing_of(title: str, about: str, parts: Sequence[Panel]) -> Element:
    """Draw the panels of a metric as one picture, for a file of its own."""
    return panels(title, about, [(panel.caption, picture_of(panel, parts)) for panel in parts])


def _about(sweep: Sweep) -> Section:
    pairs = [(name, ", ".join(labels)) for name, labels in sweep.axes.items()]
    parts = [facts([*pairs, ("Software", f"Hansa {sweep.hansa}"), ("Runs are made", f"by {sweep.way}")])]
    parts += [
        tag("p", remark, class_="lead") for remark in sweep.remarks if not remark.startswith("failed: ")
    ]
    return Section("about", "What was compared, and what it can show", "", parts)


def _runs(sweep: Sweep) -> Section:
    rows = [
        (
            tag("a", _named(run), href=f"{run.folder}/{PAGE}") if _has_page(run) else _named(run),
            run.status,
            duration(run.seconds) if run.status != "missing" else "–",
        )
        for run in sweep.runs
    ]
    parts = [table(("run", "", "time"), rows, words=(0, 1))] if rows else []
    return Section("runs", "The runs", "Each has a report of its own in its folder.", parts)


def _has_page(run: Run) -> bool:
    """Whether a run has a report of its own, in a folder below that of the sweep."""
    below = run.folder.startswith("runs/") and ".." not in run.folder and ":" not in run.folder
    return run.status == "completed" and below
