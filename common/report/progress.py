"""How the models became better: pooled, by site, and which classes they confuse."""

from collections.abc import Callable, Iterable, Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import curves
from hansa.common.drawing.matrix import heat_map
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.thinning import Point, Series
from hansa.common.report.layout import Section, figure, figures, more, table
from hansa.common.report.material import measured
from hansa.common.report.overview import metrics_in_order
from hansa.common.values.history import Findings, Update, VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import counted, in_order

METRICS = 6  # that have a picture
BY_SITE = 4  # likewise, by site
CLASSES = 40  # of a confusion matrix whose names can be read


def axis_of(view: JobView) -> Axis:
    """Return the axis of a job's versions: rounds, updates or merges."""
    return Axis(view.unit, whole=True)


def metric_axis(name: str) -> Axis:
    """Return the axis of a metric; losses may be far apart."""
    return Axis(name, logarithmic="loss" in name)


def titled(name: str) -> str:
    """Return a metric's name as it stands in a title."""
    words = name.replace("_", " ").replace("f1", "F1")
    return words[:1].upper() + words[1:]


def learning(view: JobView) -> Section:
    """Return the curves of all metrics over all examples, and by site."""
    counting = measured(view)
    lead = "All metrics are over the examples of all evaluators together." if counting else ""
    left_out = sum(bool(entry.metrics) for entry in view.history) - len(counting)
    if left_out:
        lead += f" {counted(left_out, 'version')} left out: evaluated on too few of all examples to count."
    names = metrics_in_order(view)
    own = [] if any(entry.hops for entry in view.history) else [_training_losses(view)]
    pooled = [_pooled(view, counting, name) for name in names[:METRICS]]
    by_site = [_by_site(view, counting, name) for name in names[:BY_SITE]]
    parts = [*figures(*pooled, *by_site, *own)]
    if counting:
        parts.append(more("The numbers", _numbers(view, counting, names)))
    return Section("learning", "How the model learned", lead.strip(), parts)


def _pooled(view: JobView, counting: Sequence[VersionView], name: str) -> Element | None:
    series = [Series("", [(entry.version, entry.metrics.get(name)) for entry in counting])]
    validated = _points(name, ((entry, entry.validation) for entry in counting))
    tested = _points(name, ((entry, entry.test) for entry in view.history))
    if validated:
        series = [Series("test data", series[0].points), Series("validation data", validated, dashed=True)]
    if tested:
        first = series if validated else [Series("all evaluators", series[0].points)]
        series = [*first, Series("test sites", tested, dashed=True)]
    if not any(value is not None for each in series for _, value in each.points):
        return None
    return figure(
        f"{titled(name)} of the community model", curves(name, series, axis_of(view), metric_axis(name))
    )


def _points(name: str, found: Iterable[tuple[VersionView, Findings | None]]) -> list[Point]:
    """Return the values of a metric in findings, where there are any."""
    return [
        (entry.version, findings.metrics[name])
        for entry, findings in found
        if findings and findings.metrics.get(name) is not None
    ]


def _by_site(view: JobView, counting: Sequence[VersionView], name: str) -> Element | None:
    """Draw what each evaluator finds on its own examples."""
    series = _series(counting, lambda entry: {
        site: each.metrics.get(name) for site, each in entry.evaluations.items()
    })  # fmt: skip
    if len(series) < 2:
        return None
    caption = "Each site's evaluator on its own examples." + _few_examples(counting[-1])
    picture = curves(f"{name} by site", series, axis_of(view), metric_axis(name))
    return figure(f"{titled(name)} at each site", picture, caption)


def _few_examples(entry: VersionView) -> str:
    """Warn of sites whose metrics are of so few examples that they jump by chance."""
    few = sorted((s for s, each in entry.evaluations.items() if each.examples < 30), key=in_order)
    if not few:
        return ""
    names = f"{', '.join(few[:3])}{' and others' if len(few) > 3 else ''}"
    return f" Metrics of {names} are of fewer than 30 examples and jump by chance."


def _training_losses(view: JobView) -> Element | None:
    """Draw the losses that sites report while they train."""
    last = {}
    for entry in view.history:
        last[entry.version] = _each(entry.updates, lambda update: update.loss)
    series = _series(view.history, lambda entry: last[entry.version])
    if not series:
        return None
    picture = curves("training loss by site", series, axis_of(view), Axis("training loss", logarithmic=True))
    caption = "As the sites report it while they train, on their own data."
    return figure("Training loss at each site", picture, caption)


def _each(updates: Iterable[Update], of: Callable[[Update], float | None]) -> dict[str, float | None]:
    return {update.site: of(update) for update in updates}


def _series(
    history: Iterable[VersionView], values: Callable[[VersionView], dict[str, float | None]]
) -> list[Series]:
    """Return the curve of each site through the versions that it has a value in."""
    points: dict[str, list[Point]] = {}
    for entry in history:
        for site, value in values(entry).items():
            if value is not None:
                points.setdefault(site, []).append((entry.version, value))
    return [Series(site, points[site]) for site in sorted(points, key=in_order)]


def _numbers(view: JobView, counting: Sequence[VersionView], names: Sequence[str]) -> Element:
    rows: list[tuple[str, ...]] = [
        (
            f"{entry.version}",
            f"{entry.seconds:.1f}",
            *("–" if (value := entry.metrics.get(name)) is None else f"{value:.4f}" for name in names),
            f"{entry.examples:,}",
        )
        for entry in counting[::-1]
    ]
    return table((view.unit, "seconds", *names, "examples"), rows, words=(), caption="The newest first.")


def confusion(view: JobView) -> Section:
    """Return the confusion matrix of the newest version that has one, and how well each class is found."""
    entry = next((each for each in measured(view)[::-1] if each.confusion or each.labels), None)
    title = "What the model confuses"
    if entry is None:
        return Section("classes", title)
    parts = figures(_matrix(entry), _by_class(entry))
    return Section("classes", title, f"As of version {entry.version}, over all evaluators' examples.", parts)


def _matrix(entry: Findings) -> Element | None:
    counts = entry.confusion
    if not counts or len(counts) > CLASSES:
        return None
    names = [str(at) for at in range(len(counts))]
    shades = [[value / max(sum(row), 1) for value in row] for row in counts]
    picture = heat_map(
        "Confusion matrix", counts, names, names, lambda value: f"{value:,.0f}",
        down="true class", across="predicted class", shades=shades, about=_confusions(counts),
    )  # fmt: skip
    return figure("Confusion matrix", picture, f"Shades are shares of the true class. {_confusions(counts)}")


def _confusions(counts: Sequence[Sequence[int]]) -> str:
    """Say in words what is confused most often."""
    wrong = [
        (value, row, column)
        for row, each in enumerate(counts)
        for column, value in enumerate(each)
        if row != column and value
    ]
    if not wrong:
        return "Every example is classified correctly."
    most = sorted(wrong, reverse=True)[:3]
    words = [f"{row} taken for {column} ({value:,} of {sum(counts[row]):,})" for value, row, column in most]
    return f"Most often confused: {', '.join(words)}."


def _by_class(entry: Findings) -> Element | None:
    found = entry.labels
    if entry.confusion:
        columns = [sum(row[at] for row in entry.confusion) for at in range(len(entry.confusion))]
        found = [
            [row[at], columns[at] - row[at], sum(row) - row[at]] for at, row in enumerate(entry.confusion)
        ]
    if not found:
        return None
    rows: list[tuple[str, ...]] = []
    for label, (hit, false, missed) in enumerate(found):
        precision = hit / (hit + false) if hit + false else None
        recall = hit / (hit + missed) if hit + missed else None
        f1 = 2 * hit / (2 * hit + false + missed) if hit + false + missed else None
        shares = ("–" if value is None else f"{value:.1%}" for value in (precision, recall, f1))
        rows.append((f"{label}", *shares, f"{hit + missed:,}"))
    caption = (
        "Precision: how often the prediction of a class is right. Recall: how many of a class are found."
    )
    return table(("class", "precision", "recall", "F1", "examples"), rows, caption=caption)
