"""What pictures have in common: title and description, axes with ticks, and names at the ends of lines."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.drawing.scale import Axis, Scale, apart, fitted, scale_of, width_of

WIDTH, HEIGHT = 560.0, 280.0  # of most pictures: half of a page, or the whole of a phone
TOP, BOTTOM, LINE = 30.0, 38.0, 15.0
NAMES = 156.0  # the most room for names at the right


@dataclass(frozen=True)
class Plot:
    """The part of a picture where values are: its edges, and the scales that place them."""

    left: float
    right: float
    top: float
    bottom: float
    x: Scale
    y: Scale
    ground: tuple[Element, ...]  # grid, ticks and labels


def picture(
    title: str,
    about: str,
    width: float,
    height: float,
    *parts: Element | Iterable[Element],
    remark: str = "",
) -> Element:
    """Return a picture with its title and a description for those who cannot see it.

    A `remark` on what is not drawn as it was measured belongs to the description, and below the picture.
    """
    about = " ".join(filter(None, [about, remark]))
    key = f"{zlib.crc32(repr((title, about, width, height)).encode()):08x}"
    return tag(
        "svg",
        tag("title", title, id=f"t{key}"),
        tag("desc", about, id=f"d{key}") if about else None,
        parts,
        class_="drawing",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_labelledby=f"t{key} d{key}" if about else f"t{key}",
        data_remark=remark or None,
    )


def text(x: float, y: float, words: str, class_: str) -> Element:
    """Return a text at a place."""
    return tag("text", words, x=round(x, 1), y=round(y, 1), class_=class_)


def path(steps: str, class_: str, *children: Element) -> Element:
    """Return a path."""
    return tag("path", *children, d=steps, class_=class_)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return the steps of a path through points, in few characters."""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def plot(
    x: Axis,
    xs: Iterable[float],
    y: Axis,
    ys: Iterable[float],
    width: float = WIDTH,
    height: float = HEIGHT,
    right: float = 14.0,
) -> Plot:
    """Return the ground for values in a picture of a size, with so much room at the right."""
    top, bottom = (TOP if y.label else 12.0), height - (BOTTOM if x.label else 24.0)
    down = scale_of(y, ys, bottom, top, 5, wide=True)
    labels = [down.form(value) for value in down.ticks]
    left = 16.0 + max(map(width_of, labels), default=0.0)
    most = max(2, min(8, int((width - left - right) / 62)))
    across = scale_of(x, xs, left, width - right, most, wide=False)
    ground = [
        path("".join(f"M{left:.0f} {down(value):.0f}H{width - right:.0f}" for value in down.ticks), "grid"),
        *(
            text(left - 8, down(value) + 4, label, "tick end")
            for value, label in zip(down.ticks, labels, strict=True)
        ),
        path(f"M{left:.0f} {bottom:.0f}H{width - right:.0f}", "axis"),
        *_below(across, bottom),
    ]
    if y.label:
        ground.append(text(2, 13, y.label + (" (logarithmic)" if down.logarithmic else ""), "name"))
    if x.label:
        ground.append(text(width - right, height - 4, x.label, "name end"))
    return Plot(left, width - right, top, bottom, across, down, tuple(ground))


def _below(scale: Scale, bottom: float) -> Iterable[Element]:
    """Yield the ticks below a picture, without those whose texts would touch the previous one."""
    free = float("-inf")
    for value in scale.ticks:
        label, place = scale.form(value), scale(value)
        half = width_of(label) / 2
        if place - half < free:
            continue
        free = place + half + 6
        yield path(f"M{place:.0f} {bottom:.0f}v4", "axis")
        yield text(place, bottom + 17, label, "tick middle")


def room_for(names: Iterable[str]) -> float:
    """Return how much room at the right names at the ends of lines need."""
    return min(NAMES, max((width_of(name) for name in names), default=0.0) + 34.0)


def names_at_ends(
    names: Sequence[tuple[str, float, str]], x: float, low: float, high: float, room: float
) -> list[Element]:
    """Return names beside the ends of lines, moved apart; each with its end's height and a class."""
    gap = min(LINE, (high - low) / max(len(names) - 1, 1))
    drawn: list[Element] = []
    for (name, y, class_), place in zip(names, apart([y for _, y, _ in names], gap, low, high), strict=True):
        drawn.append(path(f"M{x + 2:.1f} {y:.1f}L{x + 9:.1f} {place:.1f}h3", "leader"))
        short = fitted(name, room - 32)
        full = tag("title", name) if short != name else None
        label = text(x + 25, place + 4, short, "label")
        if full is not None:
            label.append(full)
        swatch = tag(
            "rect",
            x=round(x + 14, 1),
            y=round(place - 2, 1),
            width=8,
            height=4,
            rx=2,
            class_=f"swatch {class_}",
        )
        drawn += [swatch, label]
    return drawn
