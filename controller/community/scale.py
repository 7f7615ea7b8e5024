"""Weights without what they have in common, so that weights in the same ratios give the same bits.

n, n, n means the same as 1, 1, 1, but n·w is rounded to the grid elsewhere than w. So the greatest common
divisor of all weights is divided out, exactly. Powers of two may stay, for they move numbers and grid alike
and change no bit; what is left is an odd number. Like the grid, it follows from the set of contributions and
not from their order.
"""

import math
from collections import Counter
from collections.abc import Iterable

from hansa.controller.values.members import Member


class Scale:
    """The odd factor that all weights in the sums have in common."""

    def __init__(self) -> None:
        self._odds: Counter[int] = Counter()  # odd parts of the weights
        self._floor = 0  # divides all of them
        self.divisor = 1

    def change(self, members: Iterable[Member], sign: int) -> None:
        """Enter weights, or take them out."""
        for member in members:
            if member.weight > 0:
                top, _ = member.weight.as_integer_ratio()  # the other is a power of two
                odd = top // (top & -top)
                self._odds[odd] += sign
                if not self._odds[odd]:
                    del self._odds[odd]
                elif sign > 0:
                    self._floor = math.gcd(self._floor, odd)

    def settle(self) -> bool:
        """Find the common factor of what is there now; return whether it is another than before.

        What divides all of them is known as a rule, so that a few show that nothing larger does.
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
