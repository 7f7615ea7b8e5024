"""From values to places on a picture: round ticks, scales, and how numbers are written."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hansa.common.values.wording.sizes import amount

Form = Callable[[float], str]
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
DECADES = 3.0  # from the least to the most value, beyond which a scale may be logarithmic


@dataclass(frozen=True)
class Axis:
    """What an axis shows, and how."""

    label: str = ""
    form: Form | None = None  # how values are written; None: with as many digits as the ticks need
    whole: bool = False  # ticks are whole numbers
    zero: bool = False  # it begins at 0
    logarithmic: bool = False  # if all values are positive and far apart
    least: float | None = None  # where it begins and ends, if the values do not decide it
    most: float | None = None


BYTES = Axis("bytes", amount)


@dataclass(frozen=True)
class Scale:
    """Places values on a line of the picture; with its ticks and how they are written."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    form: Form
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; what lies beyond the ends is at the end."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = (math.log10(max(each, self.low)) for each in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def scale_of(axis: Axis, values: Iterable[float], start: float, end: float, most: int, wide: bool) -> Scale:
    """Return the scale for some values; a `wide` one ends at ticks, others at the values."""
    known = [value for value in values if math.isfinite(value)]
    low = axis.least if axis.least is not None else min(known, default=0.0)
    high = axis.most if axis.most is not None else max(known, default=1.0)
    if axis.logarithmic and low > 0 and math.log10(high / low) > DECADES:
        ends = math.floor(math.log10(low)), math.ceil(math.log10(high))
        every = -(-(ends[1] - ends[0]) // most)
        ticks = [10.0**power for power in range(ends[0], ends[1] + 1, every)]
        return Scale(10.0 ** ends[0], 10.0 ** ends[1], start, end, tuple(ticks), axis.form or brief, True)
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        room = 0.5 if axis.whole or low == 0 else abs(low) * 0.05
        low, high = low - room * (not axis.zero or low < 0), high + room
    ticks, step = ticks_between(low, high, most, axis.whole)
    if wide:
        low = min(low, math.floor(low / step + 1e-9) * step)
        high = max(high, math.ceil(high / step - 1e-9) * step)
        ticks, step = ticks_between(low, high, most + 1, axis.whole, step)
    return Scale(low, high, start, end, tuple(ticks), axis.form or form_of(step))


def ticks_between(
    low: float, high: float, most: int, whole: bool = False, step: float = 0.0
) -> tuple[list[float], float]:
    """Return round numbers within a range, at most `most` + 1 of them, and the step between them."""
    if not step:
        rough = (high - low) / max(most, 1)
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        steps = [each * power for each in STEPS if each * power >= rough * (1 - 1e-9)]
        step = next((each for each in steps if not whole or each % 1 == 0), 1.0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(at * step, 12) + 0.0 for at in range(first, last + 1)], step


def form_of(step: float) -> Form:
    """Return how the values of ticks are written: all with as many decimals as the step has."""
    if step >= 1e6 or (0 < step < 1e-4):
        return brief
    decimals = next((count for count in range(6) if math.isclose(step * 10**count % 1, 0, abs_tol=1e-6)
                     or math.isclose(step * 10**count % 1, 1, abs_tol=1e-6)), 6)  # fmt: skip
    return lambda value: f"{value:,.{decimals}f}".replace("-", "−")


def brief(value: float) -> str:
    """Write a number with three or four significant digits."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        mantissa, _, power = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(power)}".replace("-", "−")
    if size >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def width_of(text: str, size: float = 11.5) -> float:
    """Return about how wide a text is; there are no fonts to ask."""
    narrow = sum(text.count(each) for each in "iljtf.,:;|!'()[] ")
    broad = sum(not each.isascii() for each in text) + sum(text.count(each) for each in "mwMW@%")
    return size * (0.62 * len(text) - 0.27 * narrow + 0.26 * broad)


def fitted(text: str, room: float, size: float = 11.5) -> str:
    """Return a text shortened in its middle to the room there is: names may differ at either end only."""
    if width_of(text, size) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        end = kept // 2
        short = f"{text[: kept - end].rstrip()}…{text[len(text) - end :].lstrip()}"
        if width_of(short, size) <= room:
            return short
    return "…"


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places apart until each is `gap` from the next, as little as possible; they keep their order."""
    order = sorted(range(len(places)), key=places.__getitem__)
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    groups: list[tuple[float, int]] = []  # the middle and the number of places that have been joined
    for at in order:
        groups.append((min(max(places[at], low), high), 1))
        while len(groups) > 1:
            (first, m), (second, n) = groups[-2:]
            if second - n * gap / 2 >= first + m * gap / 2 - 1e-9:
                break
            half = (m + n - 1) * gap / 2
            middle = (first * m + second * n) / (m + n)
            groups[-2:] = [(min(max(middle, low + half), high - half), m + n)]
    moved = list(places)
    spots = (middle + (index - (n - 1) / 2) * gap for middle, n in groups for index in range(n))
    for at, spot in zip(order, spots, strict=True):
        moved[at] = spot
    return moved
