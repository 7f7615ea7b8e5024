"""How far the layers of sites' models are apart (divide-and-conquer §3); `splitting` says where to divide."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

Metric = Literal["eq3", "cosine", "relative_l2"]
METRICS: tuple[Metric, ...] = ("eq3", "cosine", "relative_l2")
Pair = tuple[int, int]  # of models; the order matters
Divergences = Sequence[float | None]  # of the layers, from the first on; none: nothing can be said
MODELS, PAIRS = 32, 500  # with more models, so many pairs of them are drawn


def draw_pairs(models: int, rng: np.random.Generator) -> list[Pair]:
    """Return all ordered pairs of models, or some of them if there are many."""
    if models <= MODELS:
        return list(itertools.permutations(range(models), 2))
    drawn = rng.choice(models * (models - 1), size=PAIRS, replace=False)
    firsts, seconds = np.divmod(np.sort(drawn), models - 1)
    return [(int(i), int(j + (j >= i))) for i, j in zip(firsts, seconds, strict=True)]


def divergences(
    pieces: Iterable[np.ndarray], pairs: Sequence[Pair], models: int
) -> dict[Metric, float | None]:
    """Return the mean divergence of one layer over pairs of models by every metric.

    `pieces` are its weights, a row for each model, cut into columns. A pair with a model whose weights are
    all zero says nothing; if no pair is left there is no divergence.
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
