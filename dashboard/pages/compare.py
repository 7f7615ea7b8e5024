"""Several jobs side by side."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.report.comparison import comparison as compared
from hansa.common.values.views import JobView
from hansa.dashboard.pages.layout import card
from hansa.dashboard.pages.pictures import cards

OFFERED = 100  # jobs to choose from


def comparison(known: Sequence[JobView], views: Sequence[JobView]) -> Element:
    """Return the choice of jobs, and what the chosen ones have come to."""
    chosen = {view.job for view in views}
    names = [view.name for view in views]
    labels = [view.name if names.count(view.name) == 1 else f"{view.name} {view.job}" for view in views]
    sections = compared(list(zip(labels, views, strict=True))) if views else []
    return tag("div", tag("h1", "Compare jobs"), cards(sections), _choice(known, chosen))


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
