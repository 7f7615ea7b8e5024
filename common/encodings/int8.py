"""Eight bits: differences as multiples of a scale, one scale for each row (transfer §3).

Rounding is to the nearest multiple, not at random. The error is at most half a scale instead of a whole one,
a repeated task gives the same bytes without a generator, and error feedback makes up for the bias that random
rounding is meant to avoid.
"""

from collections.abc import Mapping

import numpy as np

from hansa.common.encodings.contract import Encoding, Piece, Read
from hansa.common.plugins.registry import ENCODING, register
from hansa.common.values.errors import Rejected

STEPS = 127  # the largest multiple; −128 is not used, so that the range is symmetric
BLOCK = 1 << 18  # numbers that are computed at once


@register(ENCODING, "int8")
class Int8(Encoding):
    """Divides every row by its largest magnitude and rounds to 255 steps.

    A row is what an index of the first axis selects, such as the weights of one output. Tensors of one axis
    are one row.
    """

    def pieces(self, shape: tuple[int, ...]) -> tuple[Piece, ...]:
        """Return the scales of the rows and a multiple for each number."""
        return Piece("scale", "float32", (_rows(shape),)), Piece("int8", "int8", shape)

    def encode(self, difference: np.ndarray) -> Mapping[str, np.ndarray]:
        """Choose the smallest scale that reaches a row's largest magnitude; round to multiples of it."""
        rows = difference.reshape(_rows(difference.shape), -1)
        peaks = np.maximum(rows.max(axis=1), -rows.min(axis=1)).astype(np.float64)
        scales = (peaks / STEPS).astype(np.float32)
        short = scales.astype(np.float64) * STEPS < peaks
        scales = np.where(short, np.nextafter(scales, np.float32(np.inf)), scales)
        multiples, numbers = np.zeros(difference.size, np.int8), difference.reshape(-1)
        for start in range(0, difference.size, BLOCK):
            stop = min(start + BLOCK, difference.size)
            steps = _spread(scales, rows.shape[1], start, stop)
            room = np.zeros(stop - start)
            np.divide(numbers[start:stop], steps, out=room, where=steps > 0)  # a row of zeros stays zero
            multiples[start:stop] = np.rint(room)
        return {"scale": scales, "int8": multiples.reshape(difference.shape)}

    def require(self, shape: tuple[int, ...], read: Read) -> None:
        """Refuse scales that are negative or not finite."""
        for start in range(0, _rows(shape), BLOCK):
            scales = read("scale", start, min(start + BLOCK, _rows(shape)))
            if not np.isfinite(scales).all() or (scales < 0).any():
                raise Rejected("a scale is negative or not finite")

    def decode(self, shape: tuple[int, ...], read: Read, start: int, stop: int) -> np.ndarray:
        """Multiply by the scale of the row."""
        width = int(np.prod(shape)) // _rows(shape)
        first = start // width
        scales = read("scale", first, (stop - 1) // width + 1)
        steps = _spread(scales, width, start - first * width, stop - first * width)
        return np.asarray(read("int8", start, stop) * steps)


def _rows(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) > 1 else 1


def _spread(scales: np.ndarray, width: int, start: int, stop: int) -> np.ndarray:
    """Return the scale of each of the numbers start … stop-1 of rows of a width."""
    return np.asarray(scales[np.arange(start, stop) // width], dtype=np.float64)
