"""Groups of scores: a mixture of equal spheres, by EM from Ward's clusters (feddaf §3, steps 3 and 4)."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import cut_tree, ward
from scipy.special import logsumexp

ITERATIONS = 100
SETTLED = 1e-10  # relative gain of the likelihood below which EM has converged
LEAST_VARIANCE = 1e-4
PENALTY = 2.0  # times BIC's: plain BIC splits tight groups that lie on a line


@dataclass(frozen=True)
class Mixture:
    """A mixture of M components, the largest first."""

    centres: np.ndarray  # M × R
    variance: float  # one for all components and directions
    allocation: np.ndarray  # K × M: how much of each contribution belongs to each component
    likelihood: float  # its logarithm

    @property
    def components(self) -> int:
        """M."""
        return int(self.centres.shape[0])

    @property
    def sizes(self) -> np.ndarray:
        """How many contributions belong most to each component."""
        return np.bincount(self.allocation.argmax(axis=1), minlength=self.components)

    @property
    def cost(self) -> float:
        """-2 log L and a penalty for every parameter; the smallest is the best choice of M."""
        parameters = self.centres.size + self.components
        return -2 * self.likelihood + PENALTY * parameters * math.log(len(self.allocation))


def groups(scores: np.ndarray, most: int, least: int) -> Mixture:
    """Return the best mixture of 1 … `most` components, each with at least `least` contributions."""
    highest = max(1, min(most, len(scores) // 2))
    labels = cut_tree(ward(scores), n_clusters=list(range(1, highest + 1))).T
    best: Mixture | None = None
    for clusters in labels:
        candidate = expectation_maximisation(scores, clusters)
        fits = candidate.components == 1 or candidate.sizes.min() >= least
        if fits and (best is None or candidate.cost < best.cost):
            best = candidate
    assert best is not None, "one component always fits"
    return best


def expectation_maximisation(scores: np.ndarray, labels: np.ndarray) -> Mixture:
    """Fit a mixture with one spherical variance, starting from clusters."""
    count, rank = scores.shape
    allocation = np.eye(int(labels.max()) + 1)[labels]
    before = -np.inf
    for _ in range(ITERATIONS):
        mass = np.maximum(allocation.sum(axis=0), 1e-300)  # a component may die out
        centres = (allocation.T @ scores) / mass[:, None]
        apart = ((scores[:, None] - centres[None]) ** 2).sum(axis=2)
        variance = max(float((allocation * apart).sum()) / (count * rank), LEAST_VARIANCE)
        joint = np.log(mass / count) - apart / (2 * variance) - rank / 2 * np.log(2 * np.pi * variance)
        each = logsumexp(joint, axis=1)
        likelihood, allocation = float(each.sum()), np.exp(joint - each[:, None])
        if likelihood - before <= SETTLED * abs(likelihood):
            break
        before = likelihood
    order = np.argsort(-allocation.sum(axis=0), kind="stable")
    return Mixture(centres[order], variance, allocation[:, order], likelihood)
