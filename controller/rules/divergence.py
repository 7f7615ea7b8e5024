"""How far the layers of sites' models are apart, and where a network is best divided (divide-and-conquer §3, §4)."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Metric = Literal["eq3", "cosine", "relative_l2"]
METRICS: tuple[Metric, ...] = ("eq3", "cosine", "relative_l2")
Pair = tuple[int, int]  # of models; the order matters
Divergences = Sequence[float | None]  # of the layers, from the first on; none: nothing can be said
MODELS, PAIRS = 32, 500  # with more models, so many pairs of them are drawn
LEAST = 1e-12  # divergences below are as good as none


def draw_pairs(models: int, rng: np.random.Generator) -> list[Pair]:
    """Return all ordered pairs of models, or some of them if there are many."""
    if models <= MODELS:
        return list(itertools.permutations(range(models), 2))
    drawn = rng.choice(models * (models - 1), size=PAIRS, replace=False)
    firsts, seconds = np.divmod(np.sort(drawn), models - 1)
    return [(int(i), int(j + (j >= i))) for i, j in zip(firsts, seconds, strict=True)]


def divergences(pieces: Iterable[np.ndarray], pairs: Sequence[Pair], models: int) -> dict[Metric, float | None]:
    """Return the mean divergence of one layer over pairs of models by every metric.

    `pieces` are its weights, a row for each model, cut into columns. A pair with a model whose weights are all zero
    says nothing; if no pair is left there is no divergence.
    """
    squares = np.zeros(models)
    products = np.zeros(len(pairs))
    firsts, seconds = (np.array(side, dtype=np.intp) for side in zip(*pairs, strict=True))
    gram = len(pairs) == models * (models - 1)
    for rows in pieces:
        squares += np.einsum("ij,ij->i", rows, rows)
        if gram:
            products += (rows @ rows.T)[firsts, seconds]
        else:
            products += [rows[i] @ rows[j] for i, j in pairs]
    norms = np.sqrt(squares)
    counted = (norms[firsts] > 0) & (norms[seconds] > 0)
    if not counted.any():
        return dict.fromkeys(METRICS)
    one, other, product = norms[firsts][counted], norms[seconds][counted], products[counted]
    cosine = np.clip(1 - product / (one * other), 0, 2)
    apart = np.sqrt(np.maximum(one**2 + other**2 - 2 * product, 0))
    return {
        "eq3": float((cosine / one).mean()),  # as printed: it depends on how large a layer is
        "cosine": float(cosine.mean()),
        "relative_l2": float((apart / one).mean()),
    }


@dataclass(frozen=True)
class Choice:
    """Where to divide: after layer `split`, counted from 1. If it is not clear, only the last layer is apart."""

    split: int
    clear: bool


def choose_split(found: Divergences, min_ratio: float, legal: Collection[int] | None = None) -> Choice:
    """Divide where two levels fit the logarithms of the divergences best and the second is clearly higher.

    The paper does it by eye ("starts to increase around Layer5"); this rule is ours. `legal` are the splits to choose
    from; without it, all are.
    """
    heights = [math.log(max(value, LEAST)) if value is not None else None for value in found]
    allowed = sorted(legal if legal is not None else range(1, len(found)))
    best: tuple[float, int, float] | None = None
    for split in allowed:
        left = [height for height in heights[:split] if height is not None]
        right = [height for height in heights[split:] if height is not None]
        if not left or not right or _mean(right) <= _mean(left):
            continue
        cost = _spread(left) + _spread(right)
        if best is None or cost <= best[0]:  # of equals the later
            best = (cost, split, _mean(right) - _mean(left))
    if best is None or math.exp(best[2]) < min_ratio:
        return Choice(allowed[-1], clear=False)
    return Choice(best[1], clear=True)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)
