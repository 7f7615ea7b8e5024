"""The distance of a model from a reference, such as a centrally trained one: DC = ‖w − w′‖/‖w′‖ (radfed §5).

Only parameters count. It is for information only: nothing is computed from it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from hansa.common.models.frames import Buffer, Layout, numbers
from hansa.common.models.model import DTYPES, ModelSpec, Role, TensorInfo, difference

Numbers = Callable[[str, int, int], np.ndarray]  # the numbers of a tensor between two positions


def distance(layout: Layout, frames: Iterable[Buffer], reference: Numbers) -> float:
    """Return the distance of a model, given as frames, from a reference, relative to the reference's norm.

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
    """Return the distance from sums of squares; only zeros have a finite distance, 0, from zeros."""
    if not length:
        return 0.0 if not apart else math.inf
    return math.sqrt(apart / length)


def misfit(model: ModelSpec, reference: ModelSpec, types: bool = True) -> str | None:
    """Describe how a reference's tensors differ from a model's in name, shape or (if `types`) type, or None.

    Roles and order do not matter: files from elsewhere do not have them.
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
