"""A strip of rounds by site: who took part when, who was asked in vain, who was not asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from hansa.common.drawing.curves import nothing
from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import path, picture, text
from hansa.common.drawing.scale import Axis, brief, fitted, scale_of, width_of

WIDTH = 1120.0
COLUMNS = 160  # more rounds than these are drawn together
HOVER = 600  # cells up to which each says what happened
ROW, LOW_ROW = 20.0, 11.0
LEVELS = 4


@dataclass(frozen=True)
class Cell:
    """What a site did in a round."""

    share: float = 0.0  # of what it was to do: 0 nothing, 1 everything; decides how dark the cell is
    lost: str = ""  # why what it was asked for did not arrive
    late: bool = False  # it missed the deadline, or was stale when it arrived
    words: str = ""  # for a pointer


@dataclass
class _Joined:
    share: float = 0.0
    trained: int = 0  # rounds in which it did anything
    lost: int = 0
    late: int = 0
    words: list[str] = field(default_factory=list)

    def told(self) -> str:
        """Say what a site did: its words for a round, and counts for several."""
        if len(self.words) < 2:
            return "".join(self.words)
        counts = ((self.lost, "lost"), (self.late, "late"))
        marked = (f"{count} {what}" for count, what in counts if count)
        return ", ".join([f"took part in {self.trained}", *marked])


def strip(
    title: str,
    rounds: Sequence[tuple[float, Mapping[str, Cell]]],
    sites: Sequence[str],
    x: Axis,
    about: str = "",
    width: float = WIDTH,
) -> Element:
    """Return a row for each site and a column for each round, or for several if there are many.

    Filled cells are updates, a cross is an update that was lost; one that missed the deadline, or was stale,
    has a frame. If rounds are drawn together, a cell is as dark as the share of them in which the site took
    part, and what was lost or late stands at its bottom.
    """
    if not rounds or not sites:
        return nothing(title, (width, 100.0), "There are no rounds yet.")
    every = -(-len(rounds) // COLUMNS)
    columns = -(-len(rounds) // every)
    left = min(170.0, max(map(width_of, [*sites, x.label])) + 16.0)
    tall = ROW if len(sites) <= 40 else LOW_ROW
    wide = min(26.0, (width - left - 18) / columns)
    gap = 2.0 if wide >= 8 else 1.0 if wide >= 4 else 0.3
    top = 6.0
    boxes: dict[str, str] = {}
    hover: list[Element] = []
    for at, site in enumerate(sites):
        for column in range(columns):
            cell = _joined(rounds[column * every : (column + 1) * every], site)
            place = left + column * wide, top + at * tall
            size = wide - gap, tall - (2.5 if tall >= ROW else 1.5)
            box = f"M{place[0]:.1f} {place[1]:.1f}h{size[0]:.1f}v{size[1]:.1f}h{-size[0]:.1f}z"
            level = min(LEVELS, -int(-cell.share * LEVELS // 1)) if cell.share > 0 else 0
            boxes[f"{level}"] = boxes.get(f"{level}", "") + box
            if every == 1:
                if cell.late:
                    boxes["late"] = boxes.get("late", "") + box
                elif cell.lost:
                    boxes["lost"] = boxes.get("lost", "") + _cross(*place, *size)
            else:
                low = place[1] + size[1]
                for class_, count in (("gone", cell.lost), ("tardy", cell.late)):
                    deep = max(1.2, size[1] * count / every) if count else 0.0
                    low -= deep
                    if count:
                        bar = f"M{place[0]:.1f} {low:.1f}h{size[0]:.1f}v{deep:.1f}h{-size[0]:.1f}z"
                        boxes[class_] = boxes.get(class_, "") + bar
            if cell.words and len(sites) * columns <= HOVER:
                part = rounds[column * every : (column + 1) * every]
                names = " to ".join(dict.fromkeys(brief(part[end][0]) for end in (0, -1)))
                words = tag("title", f"{site}, {x.label} {names}: {cell.told()}")
                hover.append(path(box, "hit", words))
    parts = [_ground(int(level), steps) for level, steps in sorted(boxes.items()) if level.isdigit()]
    parts += [path(boxes[class_], class_) for class_ in ("late", "lost", "gone", "tardy") if class_ in boxes]
    bottom = top + len(sites) * tall
    places = [place for place, _ in rounds]
    first, last = left + (wide - gap) / 2, left + (columns - 1) * wide + (wide - gap) / 2
    scale = scale_of(x, places, first, max(last, first + 1), max(2, int(columns * wide / 70)), wide=False)
    ticks = [place for place in scale.ticks if place in places or every > 1]
    labels = [
        *(
            text(
                left - 8,
                top + at * tall + tall / 2 + 3,
                fitted(site, left - 10),
                "name end" if tall >= ROW else "small end",
            )
            for at, site in enumerate(sites)
        ),
        *(text(scale(tick), bottom + 14, scale.form(tick), "tick middle") for tick in ticks),
        text(left - 8, bottom + 14, x.label, "name end"),
    ]
    description = about or f"{len(sites)} sites and {len(rounds)} rounds."
    remark = (
        f"Each column stands for {every} rounds: the darker, the more of them a site took part in;"
        " red at the bottom is the share of updates that were lost, orange of those that were late."
    )
    joined = remark if every > 1 else ""
    return picture(title, description, width, bottom + 22, parts, labels, hover, remark=joined)


def _ground(level: int, steps: str) -> Element:
    if level == 0:
        return path(steps, "empty")
    cells = path(steps, "cell")
    cells.set("fill-opacity", f"{0.2 + 0.65 * level / LEVELS:.2f}")
    return cells


def _joined(part: Sequence[tuple[float, Mapping[str, Cell]]], site: str) -> _Joined:
    """Return what a site did in some rounds that are drawn together."""
    joined = _Joined()
    for _, cells in part:
        cell = cells.get(site)
        if cell is not None:
            joined.share += cell.share / len(part)
            joined.trained += cell.share > 0
            joined.lost += bool(cell.lost) and not cell.late
            joined.late += cell.late
            joined.words += filter(None, [cell.words or cell.lost])
    return joined


def _cross(x: float, y: float, wide: float, tall: float) -> str:
    half = min(wide, tall) * 0.28
    x, y = x + wide / 2, y + tall / 2
    return (
        f"M{x - half:.1f} {y - half:.1f}L{x + half:.1f} {y + half:.1f}"
        f"M{x + half:.1f} {y - half:.1f}L{x - half:.1f} {y + half:.1f}"
    )
