"""A job in pictures: the same drawings as in its report."""

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import curves
from hansa.common.drawing.markup import tag
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.strip import Cell, strip
from hansa.common.drawing.thinning import Series
from hansa.common.values.history import Update, VersionView
from hansa.common.values.views import JobView
from hansa.dashboard.pages.layout import card, ordered

ROUNDS = 160  # in the strip


LEGEND = "Filled: the site took part. Open frame: its update was stale. Cross: its update was lost."


def rounds_by_site(view: JobView) -> Element:
    """Return who took part in which of the newest rounds."""
    detailed = [version for version in view.history if version.detailed and version.version][-ROUNDS:]
    taking_part = {site.site for site in view.sites}
    names = ordered(taking_part.union(*(v.sites.keys() | v.lost.keys() for v in detailed)))
    rounds = [(float(version.version), dict(_cells(version))) for version in detailed]
    title = f"{view.unit}s by site".capitalize()
    picture = strip(title, rounds, names, Axis(view.unit, whole=True))
    scrolling = tag("div", picture, class_="scroll", tabindex=0, role="region", aria_label=title)
    return card(title, tag("figure", scrolling, tag("figcaption", LEGEND), class_="wide"))


def _cells(version: VersionView) -> Iterator[tuple[str, Cell]]:
    for site, why in version.lost.items():
        yield site, Cell(lost=why, words=f"lost: {why}")
    for site, update in version.sites.items():
        yield site, Cell(share=1.0, late=update.staleness[0] > 0, words=_words(update))


def _words(update: Update) -> str:
    loss = f", loss {update.loss:.4f}" if update.loss is not None else ""
    stale = f", {update.staleness[0]} versions old" if update.staleness[0] else ""
    return f"{update.used} examples, {update.steps} steps in {update.seconds:.1f} s{loss}{stale}"


def drawings(view: JobView) -> Element:
    """Return the curves of a job."""
    return tag("div", _metrics(view), class_="drawings")


def _metrics(view: JobView) -> Iterator[Element]:
    for name in metric_names([view]):
        series = [Series("", [(v.version, v.metrics.get(name)) for v in view.history])]
        yield card(name.replace("_", " "), curves(name, series, Axis("version", whole=True), Axis(name)))


def metric_names(views: Sequence[JobView]) -> list[str]:
    """Return the metrics that any version has, in the order in which they come."""
    return list(dict.fromkeys(name for view in views for version in view.history for name in version.metrics))
