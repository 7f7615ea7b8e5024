"""Shares that change over time, stacked on one another, such as what each site contributes to a model."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import nothing
from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import HEIGHT, WIDTH, names_at_ends, path, picture, plot, polyline, room_for
from hansa.common.drawing.scale import Axis, brief
from hansa.common.drawing.style import COLORS
from hansa.common.drawing.thinning import POINTS, note_of_means

SHARES = Axis("share", lambda value: f"{value:.0%}", least=0.0, most=1.0)


def stacked(
    title: str,
    amounts: Sequence[tuple[float, Mapping[str, float]]],
    x: Axis,
    order: Sequence[str],
    about: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Element:
    """Return shares over time: for each place, the amounts of names, which are drawn as parts of their sum.

    At most eight bands: the largest names, and the others together. Long histories are thinned to means.
    """
    sums = {name: sum(each.get(name, 0.0) for _, each in amounts) for name in order}
    largest = sorted(sums, key=lambda name: -sums[name])
    kept = [name for name in order if name in largest[: COLORS if len(order) <= COLORS else COLORS - 1]]
    rest = f"{len(order) - len(kept)} others" if len(kept) < len(order) else ""
    places = _shares(amounts, kept, rest)
    if not places:
        return nothing(title, size, "No updates were merged.")
    names = [*kept, rest] if rest else kept
    right = room_for(names)
    ground = plot(x, [place for place, _ in places], SHARES, [0.0, 1.0], *size, right=right)
    if len(places) == 1:
        places = [(ground.x.low, places[0][1]), (ground.x.high, places[0][1])]
    parts: list[Element] = []
    ends: list[tuple[str, float, str]] = []
    below = [0.0] * len(places)
    for at, name in enumerate(names):
        above = [low + shares[at] for low, (_, shares) in zip(below, places, strict=True)]
        class_ = "" if name == rest else f"s{at}"
        upper = [(ground.x(place), ground.y(high)) for (place, _), high in zip(places, above, strict=True)]
        lower = [(ground.x(place), ground.y(low)) for (place, _), low in zip(places, below, strict=True)]
        mean = sum(shares[at] for _, shares in places) / len(places)
        words = tag("title", f"{name}: {mean:.1%} on average, {places[-1][1][at]:.1%} at the end")
        parts.append(path(polyline([*upper, *reversed(lower)]) + "Z", f"area {class_}".strip(), words))
        ends.append((name, (upper[-1][1] + lower[-1][1]) / 2, class_))
        below = above
    parts += names_at_ends(ends, ground.right, ground.top + 4, ground.bottom - 4, right)
    description = about or _described(names, places, x)
    remark = note_of_means(-(-len(amounts) // POINTS))
    return picture(title, description, *size, ground.ground[:1], parts, ground.ground[1:], remark=remark)


def _shares(
    amounts: Sequence[tuple[float, Mapping[str, float]]], kept: Sequence[str], rest: str
) -> list[tuple[float, list[float]]]:
    """Return the shares of the kept names and of the rest at each place; leave out places without any."""
    known: list[tuple[float, list[float]]] = []
    for place, each in amounts:
        total = sum(value for value in each.values() if value > 0)
        if total <= 0:
            continue
        shares = [max(each.get(name, 0.0), 0.0) / total for name in kept]
        known.append((place, [*shares, max(1 - sum(shares), 0.0)] if rest else shares))
    every = -(-len(known) // POINTS) or 1
    thin: list[tuple[float, list[float]]] = []
    for start in range(0, len(known), every):
        part = known[start : start + every]
        columns = zip(*(shares for _, shares in part), strict=True)
        thin.append((sum(place for place, _ in part) / len(part), [sum(c) / len(part) for c in columns]))
    return thin


def _described(names: Sequence[str], places: Sequence[tuple[float, Sequence[float]]], x: Axis) -> str:
    form = x.form or brief
    shares = (f"{name} {places[0][1][at]:.1%} to {places[-1][1][at]:.1%}" for at, name in enumerate(names))
    return f"Shares from {x.label} {form(places[0][0])} to {form(places[-1][0])}: {', '.join(shares)}."
