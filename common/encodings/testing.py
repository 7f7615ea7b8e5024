"""The contract of encodings, as checks that run over any of them: see `hansa.plugin.testing`."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from hansa.common.encodings.contract import Encoding
from hansa.common.models.model import DTYPES
from hansa.common.plugins.testing import require

Check = Callable[[Any], None]
SHAPES = ((1,), (7,), (40, 25), (3, 4, 5, 6), (1000, 1), (1, 1000))


def differences() -> Iterator[np.ndarray]:
    """Yield arrays of several shapes: ordinary, sparse, zero, tiny and huge."""
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        ordinary = rng.standard_normal(shape).astype(np.float32) / 100
        yield from (ordinary, np.where(ordinary > 0.02, ordinary, np.float32(0)), np.zeros_like(ordinary))
        yield from (ordinary * np.float32(1e-38), ordinary * np.float32(1e38))


def decoded(encoding: Encoding, difference: np.ndarray, parts: int = 1) -> np.ndarray:
    """Return what is left of a difference once it has been encoded and decoded, in so many parts."""
    pieces = {name: array.reshape(-1) for name, array in encoding.encode(difference).items()}

    def read(name: str, start: int, stop: int) -> np.ndarray:
        return pieces[name][start:stop]

    encoding.require(difference.shape, read)
    bounds = [difference.size * i // parts for i in range(parts + 1)]
    spans = [(a, b) for a, b in pairwise(bounds) if a < b]
    numbers = [encoding.decode(difference.shape, read, start, stop) for start, stop in spans]
    return np.concatenate(numbers).reshape(difference.shape)


def writes_what_it_announces(encoding: Encoding) -> None:
    """An encoding writes the pieces that follow from the shape, the same ones every time."""
    for difference in differences():
        before = difference.tobytes()
        pieces, again = encoding.encode(difference), encoding.encode(difference)
        require(encoding, difference.tobytes() == before, "it changed the difference")
        announced = {piece.name: (piece.dtype, piece.shape) for piece in encoding.pieces(difference.shape)}
        written = {name: (array.dtype.name, array.shape) for name, array in pieces.items()}
        require(encoding, written == announced, f"it announced {announced} and wrote {written}")
        odd = [dtype for dtype, _ in announced.values() if dtype not in DTYPES]
        require(encoding, not odd, f"{odd} are not data types of models")
        same = all(pieces[name].tobytes() == again[name].tobytes() for name in pieces)
        require(encoding, same, "it wrote the same difference in two ways")


def decodes_any_part(encoding: Encoding) -> None:
    """An encoding decodes any part of a tensor to the same finite float64 numbers."""
    for difference in differences():
        whole = decoded(encoding, difference)
        require(encoding, whole.dtype == np.float64, f"it decoded to {whole.dtype}, not to float64")
        require(encoding, bool(np.isfinite(whole).all()), "it decoded to numbers that are not finite")
        parts = decoded(encoding, difference, parts=min(7, difference.size))
        require(encoding, parts.tobytes() == whole.tobytes(), "a number depends on where decoding starts")


def loses_less_than_everything(encoding: Encoding) -> None:
    """What an encoding loses is smaller than the difference, so that feedback catches up with it."""
    for difference in differences():
        exact = difference.astype(np.float64)
        size = math.sqrt(float((exact**2).sum()))
        lost = math.sqrt(float(((exact - decoded(encoding, difference)) ** 2).sum()))
        require(encoding, lost <= size, f"of a difference of norm {size:g} it loses {lost:g}")


CHECKS: tuple[Check, ...] = (writes_what_it_announces, decodes_any_part, loses_less_than_everything)
