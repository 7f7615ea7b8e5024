"""One fit for the weigher: from each update's statistics to groups, weights and boosts (feddaf §3)."""

from collections.abc import Mapping, Sequence

import numpy as np

from hansa.controller.plugin.naming import UpdateName
from hansa.controller.rules.fusion.fit import Method, fit
from hansa.controller.rules.fusion.records import BaseAndSteps, Groups

MOST_NUMBERS = 16_000_000  # of all vectors together in a fit: 128 MB, and the fit holds three copies
DIGITS = 6  # of an allocation that is shown


def group_updates(
    vectors: Mapping[UpdateName, np.ndarray],
    known: Mapping[UpdateName, BaseAndSteps],
    method: Method,
    number: int,
    seed: int,
    kind: str,
    warning: str,
) -> Groups:
    """Fit all vectors, in the order of their names."""
    names = tuple(sorted(vectors))
    base = np.array([known[name][0] for name in names], dtype=np.float64)
    base = base / base.sum() if base.any() else np.full(len(base), 1 / len(base))
    steps = np.array([known[name][1] for name in names])
    matrix = _matrix([vectors[name] for name in names], seed)
    result = fit(matrix, base, steps, method, (seed, number))
    boost = np.divide(result.weights, base, out=np.ones(len(base)), where=base > 0)  # 0 of 0: no boost
    return Groups(
        fit=number,
        kind=kind,
        numbers=result.statistics,
        rank=result.rank,
        edge=result.edge,
        top=result.top,
        sites=names,
        weights=tuple(result.weights.tolist()),
        boost=tuple(boost.tolist()),
        allocation=tuple(map(tuple, result.allocation.round(DIGITS).tolist())),
        shares=tuple(result.shares.tolist()),
        why=result.why,
        warning=result.warning or warning,
    )


def _matrix(vectors: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Stack vectors into the rows of a matrix; of very many, draw some of their numbers, so that they fit."""
    width, most = len(vectors[0]), max(1, MOST_NUMBERS // len(vectors))
    if width <= most:
        return np.stack(vectors)
    drawn = np.sort(np.random.default_rng([seed, width, most]).permutation(width)[:most])
    return np.stack([vector[drawn] for vector in vectors])
