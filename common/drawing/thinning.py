"""Fewer points for long curves: what is drawn instead of them, and the sentence that says so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

Point = tuple[float, float | None]  # None: there is no value here, and the line has a gap
POINTS = 300  # of a line: more than there are places on half a page


@dataclass(frozen=True)
class Series:
    """A named curve, and perhaps a band around it."""

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()  # place, lowest and highest
    dashed: bool = False
    color: int | None = None  # None: its place in the picture


@dataclass(frozen=True)
class Thinned:
    """A curve that is drawn with fewer points than it has."""

    series: Series
    each: int  # points that one drawn point stands for


def thinned(series: Series, most: int = POINTS) -> Thinned:
    """Return a curve of at most so many points: means of neighbours, with a band from lowest to highest.

    Nothing that was measured lies outside what is drawn.
    """
    if len(series.points) <= most:
        return Thinned(series, 1)
    each = math.ceil(len(series.points) / most)
    points: list[Point] = []
    band: list[tuple[float, float, float]] = []
    bands = {x: (low, high) for x, low, high in series.band}
    for start in range(0, len(series.points), each):
        part = series.points[start : start + each]
        known = [(x, y) for x, y in part if y is not None]
        if not known:
            points.append((part[len(part) // 2][0], None))
            continue
        x = fmean(place for place, _ in known)
        ends = [bands.get(place, (y, y)) for place, y in known]
        points.append((x, fmean(y for _, y in known)))
        band.append((x, min(low for low, _ in ends), max(high for _, high in ends)))
    return Thinned(replace(series, points=points, band=band), each)


def note(each: int, what: str = "points") -> str:
    """Return the sentence about points that have been drawn together; empty if none have."""
    if each < 2:
        return ""
    return (
        f"Each place stands for {each} {what}: the line is their mean, the band goes from lowest to highest."
    )


def envelope(lines: Sequence[Series], most: int = POINTS) -> list[tuple[float, float, float]]:
    """Return a band at so many places, from the lowest to the highest value of any of the lines."""
    ends: dict[float, tuple[float, float]] = {}
    for line in lines:
        own = [(x, y, y) for x, y in line.points if y is not None]
        for x, low, high in [*own, *line.band]:
            known = ends.get(x, (low, high))
            ends[x] = min(low, known[0]), max(high, known[1])
    places = sorted(ends)
    each = math.ceil(len(places) / most)
    parts = [places[start : start + each] for start in range(0, len(places), each or 1)]
    return [
        (fmean(part), min(ends[place][0] for place in part), max(ends[place][1] for place in part))
        for part in parts
    ]


def note_of_means(each: int) -> str:
    """Return the sentence about points that have been drawn as their means alone."""
    return f"Each place is the mean of {each} points." if each > 1 else ""


def note_of_many(each: int) -> str:
    """Return the sentence about many thinned lines in front of their envelope."""
    if each < 2:
        return ""
    return f"{note_of_means(each)} The grey area goes from the lowest to the highest value of all lines."
