"""Exact sums: terms are rounded to a fixed grid before they are added, so that all additions are exact.

Each term p·w is rounded to a multiple of 2^-bits (by adding and subtracting 1.5·2^(52-bits)). Sums of such terms stay
multiples of 2^-bits below 2^(53-bits), which float64 holds exactly: the sum depends on the set of contributions, never
on their order, and taking one away restores the sum bit for bit.

The grid is a function of the set, too: of the largest weight, the largest term and their number. Sizes are taken in
steps of 2^STEP, so that a set whose largest value moves a little keeps its grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

HEADROOM = 12  # 2^12 terms fit without a coarser grid
STEP, OFFSET = (
    8,
    3,
)  # the grid changes where the largest term passes …, 2^-5, 2^3, 2^11, …: weights of networks rarely do
FINEST, TALLEST = 1000, 900  # keep the grid's constants far from float64's own limits
CHUNK = 1 << 16  # numbers added at once: their float64 terms stay in a core's cache


@dataclass(frozen=True)
class Grid:
    """Weights are multiplied by 2^-shift, terms are multiples of 2^-bits."""

    shift: int
    bits: int

    @classmethod
    def over(cls, weight: int, term: int, count: int) -> "Grid":
        """Choose the grid for `count` terms below 2^term whose weights are below 2^weight."""
        shift = _stepped(weight)
        tall = _stepped(term) - shift
        lower = max(0, tall - TALLEST)
        headroom = max(HEADROOM, (count - 1).bit_length())
        return cls(shift + lower, min(51 - headroom - (tall - lower), FINEST))

    @classmethod
    def of(cls, weights: Sequence[float], peaks: Sequence[float]) -> "Grid":
        """Choose the grid for contributions with these weights and largest magnitudes."""
        terms = [exponent(weight) + exponent(peak) for weight, peak in zip(weights, peaks, strict=True)]
        return cls.over(max(exponent(weight) for weight in weights), max(terms), len(weights))

    def scaled(self, weight: float) -> float:
        """Return the weight that terms of this grid are made with."""
        return math.ldexp(weight, -self.shift)

    def add(self, total: np.ndarray, numbers: np.ndarray, weight: float) -> None:
        """Add weight·numbers, rounded to the grid, to the float64 array `total`; a negative weight takes them out."""
        factor = self.scaled(weight)
        constant = math.ldexp(1.5, 52 - self.bits)
        for start in range(0, len(total), CHUNK):
            term = numbers[start : start + CHUNK].astype(np.float64)
            term *= factor
            term += constant
            term -= constant
            total[start : start + CHUNK] += term

    def sum(self, weights: Sequence[float]) -> float:
        """Return the sum of the scaled weights, rounded once: again independent of order."""
        return float(sum((Fraction(self.scaled(weight)) for weight in weights), Fraction(0)))


def exponent(value: float) -> int:
    """Return the least e with value < 2^e; very low for zero."""
    return math.frexp(value)[1] if value else -1100


def _stepped(size: int) -> int:
    """Round an exponent up to the next step."""
    return -((OFFSET - size) // STEP) * STEP + OFFSET
