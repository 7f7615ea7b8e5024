"""Where a network is best divided, by the divergences of its layers (divide-and-conquer §4).

The paper does it by eye ("starts to increase around Layer5"); this rule is ours.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hansa.controller.rules.divergence import Divergences

Scale = Literal["raw", "log"]
LEAST = 1e-12  # divergences below are as good as none
FEW = 4  # layers from which on each side of a split must have two


@dataclass(frozen=True)
class Candidate:
    """A split that a level was fitted to on either side: after layer `split`, counted from 1."""

    split: int
    cost: float  # the sum of the squared distances of layers from the level of their side
    ratio: float  # the level behind the split divided by that before it


@dataclass(frozen=True)
class Choice:
    """Where to divide, and what it was chosen from."""

    split: int
    best: Candidate | None  # none: the divergence rises nowhere
    runner_up: Candidate | None  # none: there is no other candidate
    doubt: str = ""  # why it is not clear

    @property
    def clear(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.doubt


def choose_split(
    found: Divergences,
    min_ratio: float = 2.0,
    legal: Collection[int] | None = None,
    scale: Scale = "raw",
    margin: float = 0.8,
) -> Choice:
    """Divide where two levels fit the divergences best and the second is clearly higher.

    If it is not `min_ratio` times as high, only the last layer is apart. If it costs more than `margin` times
    what the runner-up costs, it is kept but not clear. From four layers on each side has two at least: a
    single layer fits its own level perfectly, and the first is often far less divergent than all others.
    `legal` are the splits to choose from; without it, all are.

    `log` is the rule as it was: levels of the logarithms, sides of any size, and no look at the runner-up.
    """
    heights = [max(value, LEAST) if value is not None else None for value in found]
    if scale == "log":
        heights = [math.log(height) if height is not None else None for height in heights]
    least = 2 if scale == "raw" and sum(height is not None for height in heights) >= FEW else 1
    allowed = sorted(legal if legal is not None else range(1, len(found)))
    candidates = [fit for split in allowed if (fit := _fitted(heights, split, least, scale)) is not None]
    candidates.sort(
        key=lambda fit: (float(f"{fit.cost:.12g}"), -fit.split)
    )  # of equals the later; rounding is no lead
    best, runner_up = [*candidates, None, None][:2]
    if best is None or best.ratio < min_ratio:
        why = "the divergence does not rise with depth"
        if best is not None:
            why = f"behind layer {best.split} it is only {best.ratio:.2f} times as large, not {min_ratio:g} times"
        last = allowed[-1]
        return Choice(last, best, runner_up, f"{why}; only the layers behind layer {last} are apart")
    doubt = ""
    if scale == "raw" and runner_up is not None and best.cost > margin * runner_up.cost:
        doubt = (
            f"after layer {best.split} it costs {best.cost:.3g} and after layer {runner_up.split} "
            f"{runner_up.cost:.3g}, which is too close; layer {best.split} is taken, compare both with layers.split"
        )
    return Choice(best.split, best, runner_up, doubt)


def _fitted(heights: Sequence[float | None], split: int, least: int, scale: Scale) -> Candidate | None:
    """Fit a level to each side of a split; return nothing where a side is too small or the second is not higher."""
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
