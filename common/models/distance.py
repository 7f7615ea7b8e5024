"""How far a model is from a reference, such as one that was trained centrally: DC = ‖w − w′‖/‖w′‖ (radfed §5).

Only parameters count; statistics follow them. It is a diagnosis: nothing is computed from it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from hansa.common.models.frames import Buffer, Layout, numbers
from hansa.common.models.model import DTYPES, ModelSpec, Role, TensorInfo, difference

Numbers = Callable[[str, int, int], np.ndarray]  # of a tensor, from one place to another


def distance(layout: Layout, frames: Iterable[Buffer], reference: Numbers) -> float:
    """Return how far the model that frames make is from a reference of the same tensors, relative to its length.

    The same two models give the same number, bit for bit, wherever they are read from.
    """
    apart: list[float] = []
    length: list[float] = []
    for index, frame in enumerate(frames):
        for span in layout.spans(index):
            info = layout.spec.tensors[span.tensor]
            if info.role is not Role.PARAM:
                continue
            width = DTYPES[info.dtype].itemsize
            there = reference(info.name, span.start // width, span.stop // width).astype(np.float64)
            with np.errstate(over="ignore"):
                length.append(float(np.square(there).sum()))
                there -= numbers(info, span, frame).astype(np.float64)
                apart.append(float(np.square(there).sum()))
    return _ratio(math.fsum(apart), math.fsum(length))


def _ratio(apart: float, length: float) -> float:
    """Return the distance, from squares; two models of zeros are alike, and nothing else is near a model of zeros."""
    if not length:
        return 0.0 if not apart else math.inf
    return math.sqrt(apart / length)


def misfit(model: ModelSpec, reference: ModelSpec, types: bool = True) -> str | None:
    """Say in which tensors' names, shapes or (unless they may differ) types a reference differs from a model, or None.

    Their roles and their order do not matter: files of other origin do not tell them.
    """
    index = model.index

    def alike(info: TensorInfo) -> TensorInfo:
        other = model.tensors[index[info.name]]
        return replace(info, role=other.role, dtype=info.dtype if types else other.dtype)

    given = [
        alike(info) if info.name in index else info
        for info in sorted(reference.tensors, key=lambda info: index.get(info.name, len(index)))
    ]
    return difference(model, ModelSpec(tuple(given)))
