"""Several jobs side by side."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import curves
from hansa.common.drawing.markup import tag
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.thinning import Series
from hansa.common.ui.versions import numbers
from hansa.common.values.sizes import amount
from hansa.common.values.views import JobView
from hansa.dashboard.pages.layout import badge, card, job_link, span_of, table
from hansa.dashboard.pages.pictures import metric_names

OFFERED = 100  # jobs to choose from


def comparison(known: Sequence[JobView], views: Sequence[JobView]) -> Element:
    """Return the choice of jobs, and what the chosen ones have come to."""
    chosen = {view.job for view in views}
    content = (_result(views), tag("div", _curves(views), class_="drawings")) if views else ()
    return tag("div", tag("h1", "Compare jobs"), content, _choice(known, chosen))


def _result(views: Sequence[JobView]) -> Element:
    rows = [
        (
            job_link(view.job, view.name),
            tag("code", view.job),
            badge(view.status),
            view.rule,
            numbers(view.metrics),
            str(view.version),
            span_of(view.seconds),
            amount(view.bytes_up + view.bytes_down),
        )
        for view in views
    ]
    columns = ("name", "job", "status", "rule", "metrics", "versions", "time", "traffic")
    return card("Results", table(columns, rows, "Results", "", columns[5:], ("metrics",)))


def _curves(views: Sequence[JobView]) -> list[Element]:
    names = [view.name for view in views]
    labels = [view.name if names.count(view.name) == 1 else f"{view.name} {view.job}" for view in views]
    drawn = []
    for metric in metric_names(views):
        series = [
            Series(label, [(version.seconds, version.metrics.get(metric)) for version in view.history])
            for label, view in zip(labels, views, strict=True)
        ]
        name = metric.replace("_", " ")
        drawn.append(card(name, curves(name, series, Axis("seconds"), Axis(name))))
    return drawn


def _choice(known: Sequence[JobView], chosen: set[str]) -> Element:
    boxes = (
        tag(
            "li",
            tag(
                "label",
                tag("input", type="checkbox", name="job", value=view.job, checked=view.job in chosen),
                f" {view.name} ",
                tag("small", f"{view.job}, {view.rule}, {view.status}"),
            ),
        )
        for view in known[:OFFERED]
    )
    form = tag(
        "form",
        tag("ul", boxes, class_="choice"),
        tag("button", "Compare", class_="strong"),
        method="get",
        action="/compare",
    )
    return card("Jobs to compare", form if known else tag("p", "There are no jobs yet.", class_="empty"))
