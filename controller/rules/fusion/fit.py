"""The whole fit: from vectors of statistics to weights, with details for operators (feddaf §3)."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hansa.controller.rules.fusion.mixture import groups
from hansa.controller.rules.fusion.reduce import Spectrum, adjusted, reduced
from hansa.controller.rules.fusion.weights import capped, fused, mixing, pruned

FEWEST = 4  # contributions; two groups of two are the smallest that can be told apart


@dataclass(frozen=True)
class Method:
    """How a fit is made."""

    backend: Literal["vae", "em"] = "vae"
    adjust: Literal["steps", "none"] = "steps"
    max_components: int = 15
    min_clients: int = 2
    theta: float = 1.0
    max_boost: float = 4.0


@dataclass(frozen=True)
class Fit:
    """The result of a fit, in the order of the vectors."""

    weights: np.ndarray  # p: K, adds up to one
    allocation: np.ndarray  # r: K × M, rows add up to one
    shares: np.ndarray  # π: M
    statistics: int = 0  # coordinates that differ between contributions
    rank: int = 0  # R
    edge: float = 0.0  # eigenvalues up to here are noise
    top: float = 0.0  # the largest eigenvalue
    why: str = ""  # why the weights are the base weights, if they are
    warning: str = ""  # if that may be a sign of a problem


def fit(
    vectors: np.ndarray, base: np.ndarray, steps: np.ndarray, method: Method, seed: tuple[int, int] = (0, 0)
) -> Fit:
    """Weigh K contributions by their statistics (K × D), base weights (adding up to one) and optimizer steps.

    The result depends, in its last bits, on the order of the contributions: sort them by site first.
    """
    count = len(base)
    if count < FEWEST:
        return _alone(base, f"{count} contributions; groups are sought from {FEWEST} on")
    if not np.isfinite(vectors).all():
        odd = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        why = f"statistics of {len(odd)} of {count} contributions are not finite"
        return replace(_alone(base, why), warning=why)
    with np.errstate(over="ignore", invalid="ignore"):
        spectrum = reduced(adjusted(vectors, steps) if method.adjust == "steps" else vectors)
    if not spectrum.statistics:
        return _alone(base, "all contributions have the same statistics", spectrum)
    if not spectrum.rank:
        return _alone(base, "the contributions differ by no more than noise", spectrum)
    mixture = groups(spectrum.scores, method.max_components, method.min_clients)
    if mixture.components == 1:
        return _alone(base, "one group describes all contributions best", spectrum)
    allocation = mixture.allocation
    if method.backend == "vae":
        from hansa.controller.rules.fusion.variational import allocate

        allocation = allocate(spectrum.scores, mixture, seed)
    allocation = pruned(allocation, base)
    if allocation.shape[1] == 1:
        return _alone(base, "of several groups, only one has members", spectrum)
    shares = mixing(allocation, base, method.theta)
    weights = capped(fused(allocation, base, shares), base, method.max_boost)
    return Fit(weights, allocation, shares, spectrum.statistics, spectrum.rank, spectrum.edge, spectrum.top)


def _alone(base: np.ndarray, why: str, spectrum: Spectrum | None = None) -> Fit:
    """Return the base weights themselves: one group."""
    seen = spectrum or Spectrum(0, 0.0, 0.0, np.zeros((len(base), 0)))
    one = np.ones((len(base), 1))
    return Fit(base.copy(), one, np.ones(1), seen.statistics, seen.rank, seen.edge, seen.top, why)
