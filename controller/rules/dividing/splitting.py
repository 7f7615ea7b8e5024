"""Finds where to divide a network from the divergences of its layers (divide-and-conquer §4).

The paper does it by eye ("starts to increase around Layer5"); this rule is ours.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hansa.controller.rules.dividing.divergence import Divergences

Scale = Literal["raw", "log"]
LEAST = 1e-12  # smaller divergences count as this
FEW = 4  # with this many layers or more, each side of a split has at least two


@dataclass(frozen=True)
class Candidate:
    """A possible split after layer `split`, counted from 1, with a level fitted to either side."""

    split: int
    cost: float  # the sum of the squared distances of layers from the level of their side
    ratio: float  # the level after the split divided by the level before it


@dataclass(frozen=True)
class Choice:
    """Where to divide, and what it was chosen from."""

    split: int
    best: Candidate | None  # None: the divergence rises nowhere
    runner_up: Candidate | None  # None: there is no other candidate
    doubt: str = ""  # why it is not clear

    @property
    def clear(self) -> bool:
        """Whether there is no doubt about it."""
        return not self.doubt


def choose_split(
    found: Divergences,
    min_ratio: float = 2.0,
    legal: Collection[int] | None = None,
    scale: Scale = "raw",
    margin: float = 0.8,
) -> Choice:
    """Divide where two levels fit the divergences best and the second is clearly higher.

    If the second level is not `min_ratio` times as high, only the last layer is split off. If the split costs
    more than `margin` times what the runner-up costs, it is taken but not clear. With four layers or more,
    each side has at least two: a single layer fits its own level perfectly, and the first is often far less
    divergent than all others. `legal` are the splits to choose from; by default all.

    `log` is the former rule: levels of the logarithms, sides of any size, and no comparison with the
    runner-up.
    """
    heights = [max(value, LEAST) if value is not None else None for value in found]
    if scale == "log":
        heights = [math.log(height) if height is not None else None for height in heights]
    least = 2 if scale == "raw" and sum(height is not None for height in heights) >= FEW else 1
    allowed = sorted(legal if legal is not None else range(1, len(found)))
    candidates = [fit for split in allowed if (fit := _fitted(heights, split, least, scale)) is not None]
    # Costs that differ only by rounding are equal, and of equal costs the later split wins.
    candidates.sort(key=lambda fit: (float(f"{fit.cost:.12g}"), -fit.split))
    best, runner_up = [*candidates, None, None][:2]
    if best is None or best.ratio < min_ratio:
        why = "the divergence does not rise with depth"
        if best is not None:
            ratio = f"{best.ratio:.2f} times as large, not {min_ratio:g} times"
            why = f"after layer {best.split} it is only {ratio}"
        last = allowed[-1]
        return Choice(last, best, runner_up, f"{why}; only the layers after layer {last} are split off")
    doubt = ""
    if scale == "raw" and runner_up is not None and best.cost > margin * runner_up.cost:
        doubt = (
            f"after layer {best.split} it costs {best.cost:.3g} and after layer {runner_up.split} "
            f"{runner_up.cost:.3g}, which is too close; layer {best.split} is taken, compare both with "
            "layers.split"
        )
    return Choice(best.split, best, runner_up, doubt)


def _fitted(heights: Sequence[float | None], split: int, least: int, scale: Scale) -> Candidate | None:
    """Fit a level to each side of a split; None if a side is too small or the second level is not higher."""
    left = [height for height in heights[:split] if height is not None]
    right = [height for height in heights[split:] if height is not None]
    if min(len(left), len(right)) < least or _mean(right) <= _mean(left):
        return None
    ratio = _mean(right) / _mean(left) if scale == "raw" else math.exp(_mean(right) - _mean(left))
    return Candidate(split, _spread(left) + _spread(right), ratio)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)
