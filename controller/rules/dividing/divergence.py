"""How far apart the layers of sites' models are (divide-and-conquer §3); `splitting` uses it."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

Metric = Literal["eq3", "cosine", "relative_l2"]
METRICS: tuple[Metric, ...] = ("eq3", "cosine", "relative_l2")
Pair = tuple[int, int]  # of models; the order matters
Divergences = Sequence[float | None]  # of the layers, from the first on; None: undefined
MODELS, PAIRS = 32, 500  # with more than 32 models, 500 pairs of them are drawn


def draw_pairs(models: int, rng: np.random.Generator) -> list[Pair]:
    """Return all ordered pairs of models, or a random part of them if there are many."""
    if models <= MODELS:
        return list(itertools.permutations(range(models), 2))
    drawn = rng.choice(models * (models - 1), size=PAIRS, replace=False)
    firsts, seconds = np.divmod(np.sort(drawn), models - 1)
    return [(int(i), int(j + (j >= i))) for i, j in zip(firsts, seconds, strict=True)]


def divergences(
    pieces: Iterable[np.ndarray], pairs: Sequence[Pair], models: int
) -> dict[Metric, float | None]:
    """Return the mean divergence of one layer over pairs of models by every metric.

    `pieces` are its weights, a row for each model, cut into columns. Pairs in which one model's weights are
    all zero are left out; if no pair remains, the divergence is None.
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
        "eq3": float((cosine / one).mean()),  # as printed; it depends on the size of the layer
        "cosine": float(cosine.mean()),
        "relative_l2": float((apart / one).mean()),
    }
