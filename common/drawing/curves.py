"""Line curves with bands: a few that are named at their ends, or many of which the extreme ones are."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import (
    HEIGHT,
    WIDTH,
    Plot,
    names_at_ends,
    path,
    picture,
    plot,
    polyline,
    room_for,
)
from hansa.common.drawing.scale import Axis, brief
from hansa.common.drawing.style import COLORS
from hansa.common.drawing.thinning import POINTS, Point, Series, envelope, note, note_of_many, thinned

DOTS = 26  # points of a line that are drawn as dots, too
HITS = 70  # points of a line that say their value when somebody points at them
CLOUD = 60  # points of a line that is one of many


def curves(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    about: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
    pale_beyond: int = COLORS,
) -> Element:
    """Return curves; more than eight are drawn pale, with their median, the highest and the lowest named.

    Up to `pale_beyond` are all named instead; colours that come again are dashed. Long curves are thinned,
    and the description says so; behind many thinned lines lies the area from the lowest to the highest value.
    """
    series = [each for each in series if any(value is not None for _, value in each.points)]
    if not series:
        return nothing(title, size)
    many = len(series) > pale_beyond
    less = [thinned(each, CLOUD if many else POINTS) for each in series]
    lines = [each.series for each in less]
    middle = thinned(Series("median", _median(series) if many else ())).series
    ends = _extremes(lines, middle, y) if many else [_colored(at, each) for at, each in enumerate(lines)]
    named = len(series) > 1
    each = max(each.each for each in less)
    around = envelope(series, CLOUD) if many and each > 1 else []
    right = room_for([each.name for each, _ in ends]) if named else 14.0
    xs = [place for each in lines for place, _ in each.points]
    ys = [value for each in lines for _, value in each.points if value is not None]
    bands = [around] if many else [each.band for each in lines]
    ys += [end for band in bands for _, *both in band for end in both]
    ground = plot(x, xs, y, ys, *size, right=right)
    parts = [path(_band(ground, around), "band all")] if around else []
    parts += [_line(ground, line, "line pale") for line in lines] if many else []
    for line, class_ in ends:
        if line.band and not many:
            parts.append(path(_band(ground, line.band), f"band {class_}"))
        parts.append(_line(ground, line, f"line {class_}{' dash' if line.dashed else ''}"))
    if not many:
        parts += [dot for line, class_ in ends for dot in _dots(ground, line, class_, x, y)]
    if named:
        heights = [(line.name, ground.y(_last(line.points)), class_) for line, class_ in ends]
        parts += names_at_ends(heights, ground.right, ground.top, ground.bottom, right)
    remark = (note_of_many if many else note)(each)
    return picture(title, about or described(series, x, y), *size, ground.ground, parts, remark=remark)


def _colored(at: int, line: Series) -> tuple[Series, str]:
    """Return a line with the class of its colour; there are eight, and then they are dashed."""
    color = at if line.color is None else line.color
    return replace(line, dashed=line.dashed or color >= COLORS), f"s{color % COLORS}"


def nothing(
    title: str, size: tuple[float, float] = (WIDTH, HEIGHT), why: str = "Nothing was measured."
) -> Element:
    """Return an empty picture that says so."""
    words = tag("text", why, x=size[0] / 2, y=size[1] / 2, class_="about middle")
    return picture(title, why, *size, [words])


def described(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Describe curves in words: where they begin and end, and between which values they are."""
    form = y.form or brief
    sentences = []
    for each in series[:COLORS]:
        known = [(place, value) for place, value in each.points if value is not None]
        values = [value for _, value in known]
        name = f"{each.name}: " if each.name else ""
        sentences.append(
            f"{name}from {form(values[0])} to {form(values[-1])},"
            f" lowest {form(min(values))}, highest {form(max(values))}."
        )
    rest = f" And {len(series) - COLORS} more." if len(series) > COLORS else ""
    first, last = (min(p for s in series for p, _ in s.points), max(p for s in series for p, _ in s.points))
    over = (x.form or brief)(first), (x.form or brief)(last)
    return f"{y.label or 'Values'} over {x.label or 'x'} {over[0]} to {over[1]}. {' '.join(sentences)}{rest}"


def _last(points: Iterable[Point]) -> float:
    return [value for _, value in points if value is not None][-1]


def _extremes(series: Sequence[Series], middle: Series, y: Axis) -> list[tuple[Series, str]]:
    """Return the lines that stand out among many, with a class for each: highest, lowest, median.

    They are named with the values that are drawn, which are means if lines are thinned.
    """
    form = y.form or (lambda value: brief(float(f"{value:.3g}")))
    middle = thinned(middle, CLOUD).series
    order = sorted(series, key=lambda each: _last(each.points))
    lines = [(order[-1], "s2"), (order[0], "s1"), *([(middle, "s0")] if middle.points else [])]
    return [(replace(line, name=f"{form(_last(line.points))} {line.name}"), class_) for line, class_ in lines]


def _median(lines: Sequence[Series]) -> list[Point]:
    """Return the median of many curves, wherever at least half of them have a value."""
    values: dict[float, list[float]] = {}
    for line in lines:
        for place, value in line.points:
            if value is not None:
                values.setdefault(place, []).append(value)
    enough = max(2, len(lines) // 2)
    return [(place, median(values[place])) for place in sorted(values) if len(values[place]) >= enough]


def _line(ground: Plot, line: Series, class_: str) -> Element:
    steps = ""
    for gap, points in groupby(line.points, key=lambda point: point[1] is None):
        if not gap:
            steps += polyline(
                (ground.x(place), ground.y(value)) for place, value in points if value is not None
            )
    return path(steps, class_)


def _band(ground: Plot, band: Sequence[tuple[float, float, float]]) -> str:
    above = [(ground.x(place), ground.y(high)) for place, _, high in band]
    below = [(ground.x(place), ground.y(low)) for place, low, _ in reversed(band)]
    return polyline([*above, *below]) + "Z"


def _dots(ground: Plot, line: Series, class_: str, x: Axis, y: Axis) -> Iterable[Element]:
    """Yield a short line's points, which say their values to a pointer."""
    known = [(place, value) for place, value in line.points if value is not None]
    if len(known) > HITS:
        return
    over, form = x.form or brief, y.form or brief
    for place, value in known:
        spot = {"cx": round(ground.x(place), 1), "cy": round(ground.y(value), 1)}
        if len(known) <= DOTS:
            yield tag("circle", **spot, r=2.6, class_=f"dot {class_}")
        words = f"{line.name or y.label}, {x.label} {over(place)}: {form(value)}"
        yield tag("circle", tag("title", words), **spot, r=7, class_=f"hit {class_}")
