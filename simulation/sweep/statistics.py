"""Statistics over repetitions: mean and deviation, and the paired comparison with a baseline.

The test is the exact sign-flip permutation test of the mean difference (Fisher, 1935): if neither of two
settings were better, each pair's difference could as well have had the other sign. It assumes nothing about
how differences are distributed, and shows plainly what few pairs can prove: with n pairs no p-value is below
2/2ⁿ, so three seeds cannot show anything at the usual 5 %, and six are the fewest that can.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

EXACT = 16  # pairs up to which all signs are tried
DRAWS = 100_000  # random signs for more pairs
SLACK = 1e-9  # relative: sums of the same numbers in another order count as equal
LEVEL = 0.05
ENOUGH = 6  # pairs from which on a p-value can be below the level
TEST = "exact sign-flip permutation test of the mean paired difference, two-sided"


@dataclass(frozen=True)
class Summary:
    """The values of some repetitions."""

    n: int  # repetitions that have a value
    mean: float
    deviation: float | None  # of the sample; None of a single value
    least: float
    most: float


@dataclass(frozen=True)
class Margin:
    """How far a combination is from the baseline, repetition by repetition."""

    n: int  # pairs
    mean: float
    least: float
    most: float
    p: float | None  # None: there is a single pair, which cannot be tested


def summarise(values: Sequence[float | None]) -> Summary | None:
    """Summarise what exists; None if nothing does."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    deviation = stdev(numbers) if len(numbers) > 1 else None
    return Summary(len(numbers), fmean(numbers), deviation, min(numbers), max(numbers))


def margin(
    values: Mapping[tuple[str, ...], float | None], baseline: Mapping[tuple[str, ...], float | None]
) -> Margin | None:
    """Compare values with those of the baseline, by repetition; None if there is no pair."""
    pairs = [(value, baseline.get(repetition)) for repetition, value in values.items()]
    differences = [value - other for value, other in pairs if value is not None and other is not None]
    if not differences:
        return None
    p = sign_flip(differences) if len(differences) > 1 else None
    return Margin(len(differences), fmean(differences), min(differences), max(differences), p)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the share of all signs under which the mean difference is at least as far from 0."""
    numbers = np.asarray(differences, dtype=np.float64)
    at_least = abs(numbers.sum()) - SLACK * np.abs(numbers).sum()
    if len(numbers) <= EXACT:
        bits = np.arange(1 << len(numbers))[:, None] >> np.arange(len(numbers)) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ numbers) >= at_least))
    signs = np.random.default_rng(0).integers(0, 2, (DRAWS, len(numbers)), dtype=np.int8)
    beyond = int(np.sum(np.abs((1.0 - 2 * signs) @ numbers) >= at_least))
    return (beyond + 1) / (DRAWS + 1)  # what was observed is one of the draws


def smallest_p(pairs: int) -> float:
    """Return the smallest p-value that this many pairs can have."""
    return min(1.0, 2.0 / 2**pairs) if pairs <= EXACT else 1 / (DRAWS + 1)
