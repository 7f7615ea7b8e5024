"""Outlines: what plugins may know about a job's model without its numbers, such as tensors and layers."""

from collections.abc import Sequence

from hansa.common.models.model import ModelSpec, Role
from hansa.common.values.bounds import Value
from hansa.common.values.results import Anatomy


class TensorOutline(Value):
    """One tensor."""

    name: str
    layer: int
    role: Role
    shape: tuple[int, ...]
    norm: bool = False  # whether it belongs to a normalisation layer


class Outline(Value):
    """A model without its numbers, if a part of the rule needs it.

    The event that brings version 0 carries it. If version 0 comes as a file and a part needs the anatomy, a
    site describes the model later.
    """

    layers: tuple[str, ...]
    tensors: tuple[TensorOutline, ...]
    anatomy: Anatomy | None = None  # None: no site built the model, or no part needs it


def outline_of(spec: ModelSpec, anatomy: Anatomy | None = None) -> Outline:
    """Return the outline of a model."""
    tensors: Sequence[TensorOutline] = [
        TensorOutline(
            name=info.name, layer=info.layer, role=info.role, shape=info.shape, norm=info.norm is not None
        )
        for info in spec.tensors
    ]
    return Outline(layers=spec.layers, tensors=tuple(tensors), anatomy=anatomy)
