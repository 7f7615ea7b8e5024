"""Jobs side by side: their results, the settings that differ, and curves over rounds, time and bytes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from xml.etree.ElementTree import Element

from hansa import __version__
from hansa.common.drawing.curves import curves
from hansa.common.drawing.markup import tag
from hansa.common.drawing.scale import BYTES, Axis, brief
from hansa.common.drawing.style import COLORS
from hansa.common.drawing.thinning import Series
from hansa.common.report.layout import Section, figure, figures, table, whole_page
from hansa.common.report.material import measured
from hansa.common.report.overview import duration, metrics_in_order
from hansa.common.report.progress import metric_axis, titled
from hansa.common.values.documents import escaped
from hansa.common.values.views import JobView
from hansa.common.values.wording.sizes import amount

METRICS = 4  # that have pictures
IDENTITY = {"name"}  # settings that say nothing about what was trained
Jobs = Sequence[tuple[str, JobView]]  # with their labels
Abscissa = Callable[[JobView], list[float]]


def comparison_page(jobs: Jobs) -> str:
    """Return a comparison of jobs as one HTML file."""
    labels = ", ".join(label for label, _ in jobs)
    head = [
        tag("p", "Comparison", class_="kicker"),
        tag("h1", f"{len(jobs)} jobs side by side"),
        tag("p", labels, class_="summary"),
    ]
    foot = f"Made by Hansa {__version__}. This file is complete: it loads nothing and runs nothing."
    return whole_page(f"Comparison of {labels}", head, comparison(jobs), foot)


def comparison(jobs: Jobs) -> list[Section]:
    """Return what jobs have come to; sections without anything to show have no parts."""
    return [_results(jobs), _settings(jobs), *_curves(jobs)]


def _results(jobs: Jobs) -> Section:
    names = [
        name for name in metrics_in_order(jobs[0][1]) if any(v.metrics.get(name) is not None for _, v in jobs)
    ]
    columns = ["job", "", *names, "examples", "versions", "time", "to the sites", "back"]
    rows = [
        (
            label,
            view.status,
            *("–" if (value := view.metrics.get(name)) is None else f"{value:.4f}" for name in names),
            f"{view.examples:,}",
            f"{view.version:,}",
            duration(view.seconds),
            amount(view.bytes_down),
            amount(view.bytes_up),
        )
        for label, view in jobs
    ]
    return Section("results", "Results", "", [table(columns, rows, words=(0, 1))])


def _settings(jobs: Jobs) -> Section:
    """Return the settings in which jobs differ; those of jobs without them are unknown."""
    flat = [dict(_flat(view.resolved.job)) if view.resolved else {} for _, view in jobs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    differing = [
        name for name in names if len({each.get(name, "–") for each in flat}) > 1 and name not in IDENTITY
    ]
    rows = [(name, *(each.get(name, "–") for each in flat)) for name in differing]
    columns = ("setting", *(label for label, _ in jobs))
    parts = [table(columns, rows, words=range(len(columns)))] if rows else []
    return Section("settings", "What differs in their settings", "", parts)


def _flat(document: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a job by their dotted paths."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value if isinstance(value, str) else escaped(value)


def _curves(jobs: Jobs) -> list[Section]:
    return [
        Section(f"metric-{at}", titled(name), "", figures(*_of_metric(jobs, name)))
        for at, name in enumerate(metrics_in_order(jobs[0][1])[:METRICS])
    ]


def _of_metric(jobs: Jobs, name: str) -> Iterator[Element | None]:
    units = {view.unit for _, view in jobs}
    unit = units.pop() if len(units) == 1 else "version"
    yield _over(jobs, name, Axis(unit, whole=True), lambda view: [entry.version for entry in view.history])
    yield _over(jobs, name, Axis("seconds", brief), lambda view: [entry.seconds for entry in view.history])
    yield _over(jobs, name, Axis("bytes sent, up and down", BYTES.form), _bytes)


def _shortened(labels: Sequence[str]) -> list[str]:
    """Return labels for the ends of lines: of `digits (seed=1)` and `digits (seed=2)` only what differs."""
    names = {label.partition(" (")[0] for label in labels}
    if len(names) == 1 and all(" (" in label and label.endswith(")") for label in labels):
        return [label.partition(" (")[2][:-1] for label in labels]
    return list(labels)


def _bytes(view: JobView) -> list[float]:
    return list(accumulate(float(entry.bytes_up + entry.bytes_down) for entry in view.history))


def _over(jobs: Jobs, name: str, axis: Axis, places: Abscissa) -> Element | None:
    series = []
    for label, view in zip(_shortened([label for label, _ in jobs]), (view for _, view in jobs), strict=True):
        at = dict(zip((entry.version for entry in view.history), places(view), strict=True))
        points = [(at[entry.version], entry.metrics.get(name)) for entry in measured(view)]
        series.append(Series(label, points))
    if not any(value is not None for each in series for _, value in each.points):
        return None
    title = f"{titled(name)} over {axis.label}"
    return figure(title, curves(title, series, axis, metric_axis(name), pale_beyond=2 * COLORS))
