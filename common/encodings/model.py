"""An update as it is sent: parameters as pieces of their differences, everything else as it is."""

from collections.abc import Callable

import numpy as np

from hansa.common.encodings.contract import Encoding, Piece, Read
from hansa.common.models.model import DTYPES, FLOATS, ModelSpec, Role, TensorInfo
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Rejected


def pieces_of(encoding: Encoding, info: TensorInfo) -> tuple[Piece, ...]:
    """Return what a tensor becomes; nothing if it is sent as it is, because it would not get smaller."""
    if info.role is not Role.PARAM or not info.is_float or not info.elements:
        return ()
    with calling(encoding):
        pieces = encoding.pieces(info.shape)
    return pieces if sum(_sent(info, piece).nbytes for piece in pieces) < info.nbytes else ()


def encoded_spec(encoding: Encoding, spec: ModelSpec) -> ModelSpec:
    """Return the tensors of an update as they are sent, in the order of the model."""
    tensors: list[TensorInfo] = []
    for info in spec.tensors:
        tensors += [_sent(info, piece) for piece in pieces_of(encoding, info)] or [info]
    sent = ModelSpec(tuple(tensors), spec.layers)
    if len(sent.index) < len(tensors):
        twice = next(name for i, name in enumerate(sent.names) if sent.index[name] != i)
        raise Rejected(f"tensor {twice} must be renamed: {encoding.kind} gives its name to a part of another")
    return sent


def piece_name(tensor: str, piece: str) -> str:
    """Return what a piece of a tensor is called on the wire."""
    return f"{tensor}@{piece}"


def reader(read: Callable[[str, int, int], np.ndarray], tensor: str) -> Read:
    """Return how the pieces of a tensor are read from a model that is read by the names of its tensors."""
    return lambda piece, start, stop: read(piece_name(tensor, piece), start, stop)


def moved(base: np.ndarray, difference: np.ndarray, dtype: str) -> np.ndarray:
    """Return numbers moved by a difference; learner and controller get the same bits."""
    with np.errstate(over="ignore"):  # numbers that overflow are refused by those who look at the result
        return np.asarray(base.astype(np.float64) + difference, dtype=DTYPES[dtype])


def _sent(info: TensorInfo, piece: Piece) -> TensorInfo:
    """Return a piece as a tensor; integers cannot have the role of parameters."""
    role = Role.PARAM if piece.dtype in FLOATS else Role.COUNT
    return TensorInfo(piece_name(info.name, piece.name), piece.dtype, piece.shape, role, info.layer)
