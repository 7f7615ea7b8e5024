"""What is in the sum of one tensor, without its numbers: weights, sizes and digests of the terms."""

from collections import Counter
from dataclasses import dataclass, field

from hansa.controller.community.grid import Grid, size

UNIT = 1074  # weights are added as integers in units of 2^-UNIT: every float is a multiple of it


@dataclass
class Column:
    """The terms in the sum of one tensor."""

    count: int = 0
    weight: int = 0  # the exact sum of the weights, in units
    terms: Counter[int] = field(default_factory=Counter)  # sizes of the terms
    digests: int = 0  # the sum of the digests, as integers
    squares: int = 0  # the sum of their squares

    def change(self, weight: float, peak: float, digest: bytes, sign: int) -> None:
        """Add a term (sign 1) or remove it (sign -1)."""
        top, bottom = weight.as_integer_ratio()
        self.weight += sign * ((top << UNIT) // bottom)
        self.count += sign
        number = int.from_bytes(digest)
        self.digests += sign * number
        self.squares += sign * number**2
        height = size(weight, peak)
        self.terms[height] += sign
        if not self.terms[height]:
            del self.terms[height]

    @property
    def alike(self) -> bool:
        """Whether all terms are the same tensor, bit for bit: their digests have no variance."""
        return self.count * self.squares == self.digests**2

    def grid(self) -> Grid:
        """Return the grid for these terms."""
        return Grid.over(max(self.terms), self.count)

    def total(self, grid: Grid) -> float:
        """Return the sum of the scaled weights, rounded once."""
        return self.weight / (1 << (UNIT + grid.shift))
