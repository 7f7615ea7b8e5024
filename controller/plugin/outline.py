"""What plugins may know of a job's model without its numbers: tensors, layers, and what its builder said of it."""

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
    norm: bool = False  # it is said to belong to a normalisation layer


class Outline(Value):
    """A model without its numbers, if a part of the rule needs it.

    The event that brings version 0 carries it; where that is a file and `needs_anatomy` holds, a site tells
    it later.
    """

    layers: tuple[str, ...]
    tensors: tuple[TensorOutline, ...]
    anatomy: Anatomy | None = None  # none: nobody built the model, or nobody needs to know


def outline_of(spec: ModelSpec, anatomy: Anatomy | None = None) -> Outline:
    """Describe a model."""
    tensors: Sequence[TensorOutline] = [
        TensorOutline(
            name=info.name, layer=info.layer, role=info.role, shape=info.shape, norm=info.norm is not None
        )
        for info in spec.tensors
    ]
    return Outline(layers=spec.layers, tensors=tuple(tensors), anatomy=anatomy)
