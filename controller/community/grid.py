"""Exact sums: terms are rounded to a fixed grid before they are added, so that all additions are exact.

Each term p·w is rounded to a multiple of 2^-bits (by adding and subtracting 1.5·2^(52-bits)). Sums of such
terms stay multiples of 2^-bits below 2^(53-bits), which float64 represents exactly: the sum depends on the
set of contributions, never on their order, and removing one restores the sum bit for bit.

The grid is a function of the set, too: of the largest term and the number of terms. The magnitudes of models
are taken in steps of 2^STEP and the number of terms in steps of HEADROOM, so that a set that changes a little
keeps its grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hansa.controller.community import kernels

HEADROOM = (4, 8, 12)  # up to 2^4, 2^8, 2^12 terms: the fewer there are, the finer the grid may be
STEP, OFFSET = 8, 3  # the grid changes when a model's largest number passes …, 2^-5, 2^3, 2^11, …: rarely
FINEST, TALLEST = 1074, 900  # limits that keep the grid's constants and terms within the range of float64
CHUNK = 1 << 16  # numbers added at once: their float64 terms stay in the cache


Term = tuple[np.ndarray, float]  # numbers and their weight


@dataclass(frozen=True)
class Grid:
    """Terms are multiples of 2^-bits. Weights are multiplied by 2^-shift, which is seldom other than 1."""

    shift: int
    bits: int

    @classmethod
    def over(cls, term: int, count: int) -> "Grid":
        """Choose the grid for `count` terms below 2^term."""
        shift = max(0, term - TALLEST) or max(min(0, term + TALLEST), -FINEST)
        needed = (count - 1).bit_length()
        headroom = next((room for room in HEADROOM if room >= needed), needed)
        return cls(shift, min(51 - headroom - (term - shift), FINEST))

    def scaled(self, weight: float) -> float:
        """Return the weight with which terms of this grid are computed."""
        return math.ldexp(weight, -self.shift)

    def add(self, total: np.ndarray, terms: Sequence[Term], fresh: bool = False) -> None:
        """Add each term's weight·numbers, rounded to the grid, to the float64 array `total`.

        If `fresh`, the terms overwrite `total`. A negative weight removes a term. The constant that rounds a
        term need not be subtracted again if the next term is rounded with its negative (both round alike: the
        constant is even), which saves a pass over memory.
        """
        constant = math.ldexp(1.5, 52 - self.bits)
        factors = [(_wide(numbers), self.scaled(weight)) for numbers, weight in terms]
        loops = kernels.ready(*(numbers for numbers, _ in factors)) if len(factors) <= 2 else None
        if loops:
            self._add_compiled(loops, total, factors, constant, fresh)
            return
        scratch = np.empty((2, min(len(total), CHUNK)))
        for start in range(0, len(total), CHUNK):
            room = total[start : start + CHUNK]
            rounded, partial = scratch[0, : len(room)], room if fresh else scratch[1, : len(room)]
            bias = constant
            for i, (numbers, factor) in enumerate(factors):
                term = rounded if i else partial
                np.multiply(numbers[start : start + CHUNK], factor, out=term, dtype=np.float64)
                term += bias
                bias = -bias
                if i:
                    partial += rounded
            if bias < 0:
                partial -= constant
            if not fresh:
                room += partial

    def mean(self, total: np.ndarray, divisor: float, room: np.ndarray) -> None:
        """Write total / divisor into `room`."""
        loops = kernels.ready(total, room)
        if loops:
            loops.divide(total, divisor, room)
        else:
            with np.errstate(over="ignore"):
                np.divide(total, divisor, out=room, casting="unsafe")
        if self.shift > 0:  # rounding must not turn a mean of huge numbers into infinity
            np.nan_to_num(room, copy=False)

    def add_and_mean(
        self, total: np.ndarray, terms: Sequence[Term], fresh: bool, divisor: float, room: np.ndarray
    ) -> None:
        """Add the last terms and write the mean; two terms, as in a commit, take one pass over memory."""
        kinds = {room.dtype, *(numbers.dtype for numbers, _ in terms)}
        alike = len(terms) == 2 and len(kinds) == 1 and not self.shift
        loops = kernels.ready(room, *(numbers for numbers, _ in terms)) if alike else None
        if loops:
            (one, of_one), (other, of_other) = terms
            constant = math.ldexp(1.5, 52 - self.bits)
            loops.add_two_divide(total, one, of_one, other, of_other, constant, fresh, divisor, room)
        else:
            self.add(total, terms, fresh)
            self.mean(total, divisor, room)

    @staticmethod
    def _add_compiled(
        loops: kernels.Kernels, total: np.ndarray, factors: Sequence[Term], constant: float, fresh: bool
    ) -> None:
        """Add one or two terms with compiled loops."""
        (one, of_one), *more = factors
        if more and more[0][0].dtype == one.dtype:
            loops.add_two(total, one, of_one, *more[0], constant, fresh)
            return
        for numbers, factor in factors:
            loops.add_one(total, numbers, factor, constant, fresh)
            fresh = False


def _wide(numbers: np.ndarray) -> np.ndarray:
    """Return numbers in a type that numpy multiplies directly."""
    return numbers.astype(np.float32) if numbers.dtype.itemsize < 4 else numbers


def exponent(value: float) -> int:
    """Return the least e with value < 2^e; very low for zero."""
    return math.frexp(value)[1] if value else -1100


def size(weight: float, peak: float) -> int:
    """Return an e with weight · peak < 2^e: exact in the weight, in steps of STEP in the peak."""
    return exponent(weight) - ((OFFSET - exponent(peak)) // STEP) * STEP + OFFSET
