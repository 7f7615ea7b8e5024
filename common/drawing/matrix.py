"""A matrix as coloured cells, such as a confusion matrix: pale is little, dark is much, empty is nothing."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import nothing
from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import WIDTH, path, picture, text
from hansa.common.drawing.scale import Form, brief, fitted, width_of

CELL, ROW, LOW_ROW = 64.0, 26.0, 15.0  # the largest cell, and the heights of rows
WRITTEN = 15  # columns up to which cells have their values in them
CELLS = 3000  # more cells than these are drawn in shades, without an element for each
SHADES = 12
STRONG = 0.55  # shades from here on are a dark ground for text


def heat_map(
    title: str,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    form: Form = brief,
    about: str = "",
    down: str = "",
    across: str = "",
    shades: Sequence[Sequence[float | None]] = (),
    width: float = WIDTH,
) -> Element:
    """Return a matrix; `down` and `across` say what rows and columns are. None is an empty cell.

    A cell's shade is its value between 0 and the largest, or what `shades` says, between 0 and 1.
    """
    if not values or not columns:
        return nothing(title, (width, 120.0))
    most = max((value for row in values for value in row if value is not None), default=0.0)
    least = min((value for row in values for value in row if value is not None), default=0.0)
    base = min(least, 0.0)
    tall = ROW if len(rows) <= 24 else LOW_ROW
    left = min(150.0, max(map(width_of, rows)) + 12.0) + (18.0 if down else 0.0)
    wide = min(CELL, (width - left - 8) / len(columns))
    slanted = max(map(width_of, columns)) > wide - 4
    if slanted:  # the last name leans over the edge
        wide = min(CELL, (width - left - min(66.0, max(map(width_of, columns)) * 0.72)) / len(columns))
    top = (20.0 if across else 4.0) + (min(70.0, max(map(width_of, columns)) * 0.72 + 8) if slanted else 18.0)
    written = len(columns) <= WRITTEN and len(rows) <= 2 * WRITTEN and wide >= 26
    single = len(rows) * len(columns) <= CELLS
    parts: list[Element] = []
    painted: dict[int, str] = {}
    gap = 1.0 if wide > 6 and tall > 6 else 0.0
    for at, row in enumerate(values):
        for to, value in enumerate(row):
            place = left + to * wide, top + at * tall
            box = f"M{place[0]:.1f} {place[1]:.1f}h{wide - gap:.1f}v{tall - gap:.1f}h{gap - wide:.1f}z"
            if value is None:
                painted[-1] = painted.get(-1, "") + box
                continue
            share = shades[at][to] if shades else (value - base) / (most - base) if most > base else 0.0
            share = share or 0.0
            level = max(1, round(share * SHADES)) if value != base else 0  # little is not nothing
            if not single or level == 0:
                painted[level] = painted.get(level, "") + box
                continue
            words = tag("title", f"{rows[at]}, {columns[to]}: {form(value)}")
            cell = path(box, "cell", words)
            cell.set("fill-opacity", f"{0.06 + 0.94 * share:.2f}")
            parts.append(cell)
            if written:
                class_ = "value middle on" if 0.06 + 0.94 * share > STRONG else "value middle"
                parts.append(text(place[0] + wide / 2, place[1] + tall / 2 + 4, form(value), class_))
    for level, boxes in sorted(painted.items()):
        ground = path(boxes, "empty" if level <= 0 else "cell")
        if level > 0:
            ground.set("fill-opacity", f"{0.06 + 0.94 * level / SHADES:.2f}")
        parts.insert(0, ground)
    height = top + len(rows) * tall + 6
    labels = [
        *_row_names(rows, left, top, tall, 18.0 if down else 0.0),
        *_column_names(columns, left, top, wide, slanted),
    ]
    if across:
        labels.append(text(left, 12, across, "name"))
    if down:
        middle = top + len(rows) * tall / 2
        turned = text(10, middle, down, "name middle")
        turned.set("transform", f"rotate(-90 10 {middle:.1f})")
        labels.append(turned)
    description = about or f"{len(rows)} rows and {len(columns)} columns, from {form(least)} to {form(most)}."
    return picture(title, description, width, height, parts, labels)


def _row_names(names: Sequence[str], left: float, top: float, tall: float, indent: float) -> list[Element]:
    return [
        text(left - 8, top + at * tall + tall / 2 + 4, fitted(name, left - 10 - indent), "name end")
        for at, name in enumerate(names)
    ]


def _column_names(names: Sequence[str], left: float, top: float, wide: float, slanted: bool) -> list[Element]:
    every = max(1, -(-len(names) * 13 // max(int(wide * len(names)), 1)))
    drawn = []
    for at in range(0, len(names), every):
        place = left + at * wide + wide / 2
        if slanted:
            label = text(place - 2, top - 6, fitted(names[at], 86), "name")
            label.set("transform", f"rotate(-45 {place - 2:.1f} {top - 6:.1f})")
        else:
            label = text(place, top - 6, names[at], "name middle")
        drawn.append(label)
    return drawn
