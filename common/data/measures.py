"""How heterogeneous the sites of a partition are: sizes, C-score, divergence (partitioning §6)."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Measures:
    """Statistics of a partition, from its matrix sites × classes."""

    sites: int
    examples: int
    least: int
    most: int
    mean: float
    deviation: float  # of the sizes, over all sites
    c_score: float
    divergence: float  # mean over pairs of sites
    divergence_most: float
    classes_per_site: float


def measure(matrix: np.ndarray) -> Measures:
    """Compute the statistics of a matrix sites × classes."""
    rows = matrix.sum(axis=1)
    apart = divergences(matrix)
    pairs = apart[np.triu_indices(len(apart), k=1)]
    return Measures(
        sites=len(matrix),
        examples=int(rows.sum()),
        least=int(rows.min()),
        most=int(rows.max()),
        mean=float(rows.mean()),
        deviation=float(rows.std()),
        c_score=c_score(matrix),
        divergence=float(pairs.mean()) if len(pairs) else 0.0,
        divergence_most=float(pairs.max()) if len(pairs) else 0.0,
        classes_per_site=float((matrix > 0).sum(axis=1).mean()),
    )


def shares_of(matrix: np.ndarray) -> np.ndarray:
    """Return the class shares of every site that has data."""
    nonempty = matrix[matrix.sum(axis=1) > 0]
    shares: np.ndarray = nonempty / nonempty.sum(axis=1, keepdims=True)
    return shares


def c_score(matrix: np.ndarray) -> float:
    """Return the mean over sites of Σ|share of a class at the site - its share in all data|: 0 … 2."""
    if not matrix.sum():
        return 0.0
    pooled = matrix.sum(axis=0) / matrix.sum()
    return float(np.abs(shares_of(matrix) - pooled).sum(axis=1).mean())


def divergences(matrix: np.ndarray) -> np.ndarray:
    """Return the Jensen-Shannon divergence of each pair of sites in bits: 0 (same shares) … 1 (disjoint)."""
    shares = shares_of(matrix)
    divergence = np.zeros((len(shares), len(shares)))
    for site, mine in enumerate(shares):
        middle = (mine + shares) / 2
        divergence[site] = (_entropy(middle) - (_entropy(mine) + _entropy(shares)) / 2).clip(0, 1)
    return divergence


def _entropy(shares: np.ndarray) -> np.ndarray:
    """Return entropies in bits along the last axis."""
    logs = np.log2(shares, where=shares > 0, out=np.zeros(shares.shape))
    return np.asarray(-(shares * logs).sum(axis=-1))
