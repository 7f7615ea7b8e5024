"""Half precision: every difference is rounded to 16 bits (transfer §2)."""

from collections.abc import Mapping

import numpy as np

from hansa.common.encodings.contract import Encoding, Piece, Read
from hansa.common.plugins.registry import ENCODING, register

LARGEST = float(np.finfo(np.float16).max)  # 65504


@register(ENCODING, "float16")
class Float16(Encoding):
    """Rounds to the nearest float16; what is larger than any of them becomes the largest."""

    def pieces(self, shape: tuple[int, ...]) -> tuple[Piece, ...]:
        """Return one array of the same shape."""
        return (Piece("float16", "float16", shape),)

    def encode(self, difference: np.ndarray) -> Mapping[str, np.ndarray]:
        """Round to the nearest, ties to even."""
        return {"float16": np.clip(difference, -LARGEST, LARGEST).astype(np.float16)}

    def decode(self, shape: tuple[int, ...], read: Read, start: int, stop: int) -> np.ndarray:
        """Return the numbers as they were sent."""
        return read("float16", start, stop).astype(np.float64)
