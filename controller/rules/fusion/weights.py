"""From groups to weights: components are averaged, and their means are weighted by π (feddaf §3, steps 6–9).

The paper's coefficients π·b·c do not add up to one: with one component they add up to the number of clients.
Normalised within each component they do. With π = N, the shares of EM, the weights would be the base weights
again, whatever the groups: the whole effect comes from Eq. 10, which keeps π close to equal.
"""

import numpy as np

OCCUPIED = 0.5  # contributions that a component must have to be kept


def pruned(allocation: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Drop components that have hardly any members."""
    mass = base @ allocation
    kept = allocation[:, len(base) * mass >= OCCUPIED]
    rows = kept.sum(axis=1, keepdims=True)
    lost = rows[:, 0] <= 0
    if lost.any():  # members of dropped components only: allocate them like the average of the others
        kept = np.where(lost[:, None], base @ kept, kept)
        rows = kept.sum(axis=1, keepdims=True)
    return np.asarray(kept / rows)


def mixing(allocation: np.ndarray, base: np.ndarray, theta: float = 1.0) -> np.ndarray:
    """Return the weight π of every component (Eq. 10): a softmax of the components' shares."""
    powers = base @ allocation / theta
    raised = np.exp(powers - powers.max())
    return np.asarray(raised / raised.sum())


def fused(allocation: np.ndarray, base: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the weights: the mean of each component's contributions, components weighted by `shares`."""
    return np.asarray(base * (allocation @ (shares / (base @ allocation))))


def capped(weights: np.ndarray, base: np.ndarray, boost: float) -> np.ndarray:
    """Cap weights at `boost` times their base weight; what is cut off goes to the others in proportion."""
    limit = boost * base
    weights, full = weights.copy(), np.zeros(len(weights), dtype=bool)
    while True:
        over = (weights > limit) & ~full
        if not over.any():
            return weights
        full |= over
        weights[full] = limit[full]
        free = weights[~full].sum()
        if free > 0:
            weights[~full] *= (1 - limit[full].sum()) / free
