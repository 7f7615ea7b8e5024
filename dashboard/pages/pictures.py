"""A job in pictures: the sections of its report."""

from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.report.layout import Section
from hansa.common.report.methods import methods
from hansa.common.report.progress import confusion, learning
from hansa.common.report.sites import participation, rounds_by_site, traffic
from hansa.common.values.views import JobView
from hansa.dashboard.pages.layout import card

ROUNDS = 160  # in the strip, each with a column of its own


def strip(view: JobView) -> Element:
    """Return who took part in which of the newest rounds."""
    newest = _detailed(view)
    newest = newest.model_copy(update={"history": newest.history[-ROUNDS:]})
    picture = rounds_by_site(newest)
    return tag("section", picture, class_="card") if picture is not None else tag("div")


def drawings(view: JobView) -> Element:
    """Return the sections of a job's report; single sites are shown in the newest versions only."""
    newest = _detailed(view)
    sections = [
        learning(view),
        confusion(view),
        participation(newest, with_strip=False),
        *methods(newest),
        traffic(newest),
    ]
    return tag("div", cards(sections))


def cards(sections: list[Section]) -> list[Element]:
    """Return the sections that have anything to show."""
    return [card(each.title, each.parts, about=each.lead) for each in sections if each.parts]


def _detailed(view: JobView) -> JobView:
    """Return a job with the newest part of its history, of which the sites' details are known."""
    return view.model_copy(update={"history": tuple(each for each in view.history if each.detailed)})
