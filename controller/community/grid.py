"""Exact sums: terms are rounded to a fixed grid before they are added, so that all additions are exact.

Each term p·w is rounded to a multiple of 2^-bits (by adding and subtracting 1.5·2^(52-bits)). Sums of such terms stay
multiples of 2^-bits below 2^(53-bits), which float64 holds exactly: the sum depends on the set of contributions, never
on their order, and taking one away restores the sum bit for bit. The grid itself is a function of the set, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

HEADROOM = 12  # 2^12 terms fit without a coarser grid
FINEST, TALLEST = 1000, 900  # keep the grid's constants far from float64's own limits


@dataclass(frozen=True)
class Grid:
    """Weights are multiplied by 2^-shift, terms are multiples of 2^-bits."""

    shift: int
    bits: int

    @classmethod
    def of(cls, weights: Sequence[float], peaks: Sequence[float]) -> "Grid":
        """Choose the grid for contributions with these weights and largest magnitudes."""
        shift = math.frexp(max(weights))[1]
        tall = max(_exponent(math.ldexp(p, -shift)) + _exponent(peak) for p, peak in zip(weights, peaks, strict=True))
        lower = max(0, tall - TALLEST)
        headroom = max(HEADROOM, (len(weights) - 1).bit_length())
        return cls(shift + lower, min(51 - headroom - (tall - lower), FINEST))

    def scaled(self, weight: float) -> float:
        """Return the weight that terms of this grid are made with."""
        return math.ldexp(weight, -self.shift)

    def add(self, total: np.ndarray, numbers: np.ndarray, weight: float) -> None:
        """Add weight·numbers, rounded to the grid, to the float64 array `total`."""
        term = numbers.astype(np.float64)
        term *= self.scaled(weight)
        constant = math.ldexp(1.5, 52 - self.bits)
        term += constant
        term -= constant
        total += term

    def sum(self, weights: Sequence[float]) -> float:
        """Return the sum of the scaled weights, rounded once: again independent of order."""
        return float(sum((Fraction(self.scaled(weight)) for weight in weights), Fraction(0)))


def _exponent(value: float) -> int:
    """Return the least e with value < 2^e; very low for zero."""
    return math.frexp(value)[1] if value else -1100
