"""Sparse updates: only the largest differences of each tensor are sent (transfer §4)."""

import math
from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hansa.common.encodings.contract import Encoding, Piece, Read
from hansa.common.plugins.registry import ENCODING, register
from hansa.common.values.bounds import Value
from hansa.common.values.errors import Rejected

BLOCK = 1 << 18  # indices that are looked at at once


class Share(Value):
    """How many of the numbers are sent."""

    share: float = Field(
        0.01, gt=0, lt=0.5, description="the part of each tensor's numbers that is sent, the largest ones"
    )


@register(ENCODING, "topk")
class TopK(Encoding, Share):
    """Sends the k numbers of largest magnitude and where they are: k = ⌈share · n⌉ of n numbers."""

    def pieces(self, shape: tuple[int, ...]) -> tuple[Piece, ...]:
        """Return indices in ascending order, and the numbers there."""
        size = math.prod(shape)
        kept = (self._kept(size),)
        return Piece("indices", "uint32" if size <= 1 << 32 else "uint64", kept), Piece(
            "values", "float32", kept
        )

    def encode(self, difference: np.ndarray) -> Mapping[str, np.ndarray]:
        """Choose the numbers; of equal magnitudes, those that come first."""
        numbers = difference.reshape(-1)
        indices, values = self.pieces(difference.shape)
        kept = self._kept(numbers.size)
        magnitudes = np.abs(numbers)
        magnitudes.partition(numbers.size - kept)
        smallest = magnitudes[numbers.size - kept]  # of those that are kept
        np.abs(numbers, out=magnitudes)
        larger = np.flatnonzero(magnitudes > smallest)
        equal = np.flatnonzero(magnitudes == smallest)[: kept - len(larger)]
        chosen = np.sort(np.concatenate([larger, equal]))
        return {indices.name: chosen.astype(indices.dtype), values.name: numbers[chosen]}

    def require(self, shape: tuple[int, ...], read: Read) -> None:
        """Refuse indices that are out of range, repeated or not in ascending order."""
        size, before = math.prod(shape), -1
        kept = self._kept(size)
        for start in range(0, kept, BLOCK):
            indices = read("indices", start, min(start + BLOCK, kept))
            if int(indices[0]) <= before or (indices[1:] <= indices[:-1]).any():
                raise Rejected("indices are repeated or not in ascending order")
            before = int(indices[-1])
        if before >= size:
            raise Rejected(f"index {before} is out of range: there are {size} numbers")

    def decode(self, shape: tuple[int, ...], read: Read, start: int, stop: int) -> np.ndarray:
        """Put the numbers where they belong, among zeros."""

        def index(at: int) -> int:
            return int(read("indices", at, at + 1)[0])

        kept = range(self._kept(math.prod(shape)))
        first = bisect_left(kept, start, key=index)
        last = bisect_left(kept, stop, lo=first, key=index)
        numbers = np.zeros(stop - start)
        if first < last:
            numbers[read("indices", first, last).astype(np.int64) - start] = read("values", first, last)
        return numbers

    def _kept(self, size: int) -> int:
        return math.ceil(self.share * size)
