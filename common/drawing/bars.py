"""Bars: amounts by name, lying; and how often each value occurs, standing."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import nothing
from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import HEIGHT, WIDTH, names_at_ends, path, picture, plot, text
from hansa.common.drawing.scale import Axis, Form, brief, fitted, ticks_between, width_of

ROW = 24.0
LOW_ROW = 15.0
STANDING = 40  # values up to which each has a bar of its own


def bars(
    title: str,
    amounts: Sequence[tuple[str, Sequence[float]]],
    parts: Sequence[str] = (),
    form: Form = brief,
    about: str = "",
    width: float = WIDTH,
) -> Element:
    """Return a lying bar for each name, with its amount; several `parts` of an amount follow one another."""
    if not amounts:
        return nothing(title, (width, 100.0))
    most = max(sum(each) for _, each in amounts) or 1.0
    tall = ROW if len(amounts) <= 30 else LOW_ROW
    written = [" + ".join(map(form, each)) if len(parts) > 1 else form(sum(each)) for _, each in amounts]
    left = min(150.0, max(width_of(name) for name, _ in amounts) + 14.0)
    right = max(map(width_of, written)) + 14.0
    top = 24.0 if len(parts) > 1 else 4.0
    long = max(width - left - right, 60.0)
    drawn: list[Element] = []
    for at, (name, each) in enumerate(amounts):
        place, y = left, top + at * tall
        drawn.append(text(left - 8, y + tall / 2 + 4, fitted(name, left - 10), "name end"))
        for part, value in enumerate(each):
            size = max(value, 0.0) / most * long
            words = tag("title", f"{name}{', ' + parts[part] if len(parts) > 1 else ''}: {form(value)}")
            class_ = f"bar s{part}" if len(parts) > 1 else "bar s0"
            drawn.append(
                tag(
                    "rect",
                    words,
                    x=round(place, 1),
                    y=round(y + 3, 1),
                    width=round(max(size - (1 if len(parts) > 1 else 0), 0.5), 1),
                    height=round(tall - 6, 1),
                    rx=2,
                    class_=class_,
                )
            )
            place += size
        drawn.append(text(place + 7, y + tall / 2 + 4, written[at], "value"))
    if len(parts) > 1:
        place = left
        for part, name in enumerate(parts):
            drawn.append(tag("rect", x=place, y=4, width=12, height=8, rx=2, class_=f"swatch s{part}"))
            drawn.append(text(place + 17, 12, name, "name"))
            place += 34 + width_of(name)
    height = top + len(amounts) * tall + 4
    description = (
        about or "; ".join(f"{name} {text}" for (name, _), text in zip(amounts, written, strict=True)) + "."
    )
    return picture(title, description, width, height, drawn)


def histogram(
    title: str,
    counts: Mapping[int, int],
    x: Axis,
    about: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
    y: str = "updates",
) -> Element:
    """Return how often each whole number occurs; many different ones are counted in steps."""
    if not counts:
        return nothing(title, size)
    low, high = min(counts), max(counts)
    step = 1
    if high - low >= STANDING:
        step = max(1, int(ticks_between(0, high - low, STANDING, whole=True)[1]))
    low -= low % step
    steps: dict[int, int] = {}
    for value, count in counts.items():
        start = (value - low) // step * step + low
        steps[start] = steps.get(start, 0) + count
    over = Axis(x.label, x.form, whole=True, least=low - step / 2, most=max(steps) + step / 2)
    ground = plot(over, [], Axis(y, zero=True, whole=True), steps.values(), *size)
    wide = ground.x(low + step) - ground.x(low)
    wide = min(wide - min(3.0, wide * 0.15), 56.0)
    drawn: list[Element] = []
    for start, count in sorted(steps.items()):
        which = f"{start}" if step == 1 else f"{start} to {start + step - 1}"
        x0, y0 = ground.x(start) - wide / 2, ground.y(count)
        steps_ = f"M{x0:.1f} {ground.bottom:.1f}V{y0:.1f}h{wide:.1f}V{ground.bottom:.1f}z"
        drawn.append(path(steps_, "bar s0", tag("title", f"{x.label} {which}: {count:,} {y}")))
    total = sum(counts.values())
    mean = sum(value * count for value, count in counts.items()) / total
    description = about or f"{total:,} {y}: {x.label} {min(counts)} to {high}, {mean:.3g} on average."
    remark = f"Each bar stands for {step} values." if step > 1 else ""
    return picture(title, description, *size, ground.ground[:1], drawn, ground.ground[1:], remark=remark)


def scatter(
    title: str,
    groups: Mapping[str, Sequence[tuple[float, float]]],
    x: Axis,
    y: Axis,
    about: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Element:
    """Return points, each group in a colour of its own up to eight, and named at its mean height."""
    groups = {name: points for name, points in groups.items() if points}
    every = [point for points in groups.values() for point in points]
    if not every:
        return nothing(title, size)
    few = 1 < len(groups) <= 8
    right = 130.0 if few else 14.0
    ground = plot(x, [place for place, _ in every], y, [value for _, value in every], *size, right=right)
    drawn: list[Element] = []
    for at, points in enumerate(groups.values()):
        dots = "".join(
            f"M{ground.x(place):.1f} {ground.y(value):.1f}m-2.4 0a2.4 2.4 0 1 0 4.8 0a2.4 2.4 0 1 0-4.8 0"
            for place, value in points
        )
        drawn.append(path(dots, f"dot faint s{at if few else 0}"))
    if few:
        means = [
            (name, ground.y(sum(value for _, value in points) / len(points)), f"s{at}")
            for at, (name, points) in enumerate(groups.items())
        ]
        drawn += names_at_ends(means, ground.right, ground.top, ground.bottom, right)
    description = about or f"{len(every)} points of {len(groups)} groups: {y.label} over {x.label}."
    return picture(title, description, *size, ground.ground, drawn)
