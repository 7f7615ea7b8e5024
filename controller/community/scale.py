"""Weights without their common factor, so that weights in the same ratios give the same bits.

The weights n, n, n mean the same as 1, 1, 1, but n·w is rounded to the grid at another place than w. So the
greatest common divisor of all weights is divided out, exactly. Powers of two may stay, because they shift
numbers and grid alike and change no bit; the remaining divisor is odd. Like the grid, it depends on the set
of contributions and not on their order.
"""

import math
from collections import Counter
from collections.abc import Iterable

from hansa.controller.values.members import Member


class Scale:
    """The odd factor that all weights in the sums have in common."""

    def __init__(self) -> None:
        self._odds: Counter[int] = Counter()  # odd parts of the weights
        self._floor = 0  # a number that divides all of them
        self.divisor = 1

    def change(self, members: Iterable[Member], sign: int) -> None:
        """Add weights (sign 1) or remove them (sign -1)."""
        for member in members:
            if member.weight > 0:
                top, _ = member.weight.as_integer_ratio()  # the denominator is a power of two
                odd = top // (top & -top)
                self._odds[odd] += sign
                if not self._odds[odd]:
                    del self._odds[odd]
                elif sign > 0:
                    self._floor = math.gcd(self._floor, odd)

    def settle(self) -> bool:
        """Compute the common factor of the present weights; return whether it has changed.

        Usually a common divisor is known already, and a few weights show that there is no larger one.
        """
        common = 0
        for odd in self._odds:
            common = math.gcd(common, odd)
            if common == self._floor:
                break
        self._floor, before, self.divisor = common, self.divisor, common or 1
        return self.divisor != before

    def __call__(self, member: Member) -> float:
        """Return a member's weight without the common factor, exactly."""
        return member.weight / self.divisor
