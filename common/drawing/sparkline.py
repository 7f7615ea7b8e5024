"""A curve as small as a word, for tables and tiles."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import path, picture, polyline
from hansa.common.drawing.thinning import Series, thinned

POINTS = 60


def sparkline(
    title: str, values: Sequence[float | None], width: float = 96.0, height: float = 24.0
) -> Element:
    """Return a curve without axes, whose last value is a dot; a dash if there are no values."""
    thin = thinned(Series("", list(enumerate(values))), POINTS).series
    known = [(place, value) for place, value in thin.points if value is not None]
    if not known:
        return tag("span", "–", class_="none")
    low, high = min(value for _, value in known), max(value for _, value in known)
    last = max(len(values) - 1, 1)

    def at(place: float, value: float) -> tuple[float, float]:
        share = (value - low) / (high - low) if high > low else 0.5
        return 3 + place / last * (width - 6), height - 3 - share * (height - 6)

    dots = [at(*point) for point in known]
    end = tag("circle", cx=round(dots[-1][0], 1), cy=round(dots[-1][1], 1), r=2.2, class_="dot s0")
    drawn = picture(title, "", width, height, path(polyline(dots), "line thin s0"), end)
    drawn.set("class", "drawing spark")
    return drawn
