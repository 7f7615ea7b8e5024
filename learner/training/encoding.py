"""Encodes an update before it is sent, and keeps what the encoding lost for the next one."""

from collections.abc import Iterator, Mapping

import numpy as np

from hansa.common.encodings import encoding_of
from hansa.common.encodings.contract import Encoding, Read
from hansa.common.encodings.model import encoded_spec, moved, piece_name, pieces_of
from hansa.common.models.frames import Layout, allocate, seal, views
from hansa.common.models.model import Arrays, Manifest, ModelSpec, TensorInfo
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import PluginFailed, Rejected
from hansa.learner.plugins.contract import LocalRun

LOST = "transfer/"  # names of arrays with what was lost begin with it
BLOCK = 1 << 18  # numbers that are computed at once


def encoded(spec: ModelSpec, update: Mapping[str, np.ndarray], run: LocalRun) -> tuple[Manifest, np.ndarray]:
    """Return an update as its task asks for it; afterwards `update` holds what the controller decodes."""
    assert run.work.encoding is not None
    encoding = encoding_of(run.work.encoding)
    return encode(encoding, spec, run.anchor, update, run.arrays if encoding.feedback else {})


def encode(
    encoding: Encoding,
    spec: ModelSpec,
    start: Arrays,
    update: Mapping[str, np.ndarray],
    memory: dict[str, np.ndarray],
) -> tuple[Manifest, np.ndarray]:
    """Return an update as it is sent; afterwards `update` holds what the controller decodes.

    `start` is the model that the task started from. What was lost in earlier updates is in `memory` and is
    sent with this one; what this one loses takes its place.
    """
    layout = Layout(encoded_spec(encoding, spec))
    payload = allocate(layout)
    places = views(layout, payload)
    for info in spec.tensors:
        if not pieces_of(encoding, info):
            places[info.name][...] = update[info.name]
            continue
        tensor, base = update[info.name].reshape(-1), start[info.name].reshape(-1)
        difference = _difference(info, tensor, base, memory)
        pieces = _pieces(encoding, info, difference.reshape(info.shape))
        for name, array in pieces.items():
            places[piece_name(info.name, name)][...] = array
        read = _read(pieces)
        for part in _blocks(info.elements):
            with calling(encoding):
                decoded = encoding.decode(info.shape, read, part.start, part.stop)
            tensor[part] = moved(base[part], decoded, info.dtype)
            _require_finite(info, tensor[part])
            # What the addition rounds off counts as lost, too: it is much in a model of 16 bits.
            difference[part] -= tensor[part].astype(np.float64) - base[part]
    return seal(layout.spec, payload), payload


def _difference(
    info: TensorInfo, tensor: np.ndarray, base: np.ndarray, memory: dict[str, np.ndarray]
) -> np.ndarray:
    """Return the difference to be sent, in the place where what is lost of it is remembered."""
    difference = memory.get(LOST + info.name)
    if difference is None or (difference.dtype.name, difference.shape) != ("float32", info.shape):
        difference = np.zeros(info.shape, np.float32)
    memory[LOST + info.name] = difference
    flat = difference.reshape(-1)
    for part in _blocks(info.elements):
        with np.errstate(over="ignore", invalid="ignore"):
            flat[part] = tensor[part].astype(np.float64) - base[part] + flat[part]
        _require_finite(info, flat[part])
    return flat


def _require_finite(info: TensorInfo, numbers: np.ndarray) -> None:
    if not np.isfinite(numbers).all():
        raise Rejected(f"tensor {info.name} holds NaN or infinite values")


def _pieces(encoding: Encoding, info: TensorInfo, difference: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the pieces of a tensor, if they are what the encoding says that they are."""
    with calling(encoding):
        wanted = {piece.name: (piece.dtype, piece.shape) for piece in encoding.pieces(info.shape)}
        pieces = encoding.encode(difference)
    given = {name: (array.dtype.name, array.shape) for name, array in pieces.items()}
    if given != wanted:
        raise PluginFailed(encoding, f"tensor {info.name} became {given!r:.200} instead of {wanted!r:.200}")
    return pieces


def _read(pieces: Mapping[str, np.ndarray]) -> Read:
    flat = {name: array.reshape(-1) for name, array in pieces.items()}
    return lambda name, start, stop: flat[name][start:stop]


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))
