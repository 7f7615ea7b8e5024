"""The contract of encodings: how the difference between an update's tensor and the task's is sent.

    learner      difference + what was lost before ── encode ──► pieces, which travel as tensors of a model
    controller   pieces ── require, decode ──► difference, added to the tensor that the task started from

Both sides decode: the learner to know what was lost. An encoding is a frozen value without state. What it
returns must follow from its arguments alone, bit for bit.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import Field, ValidationError

from hansa.common.job.check import described
from hansa.common.plugins.registry import ENCODING, Plugin, contract, kinds, not_loaded
from hansa.common.values.bounds import Value
from hansa.common.values.errors import Refused, Unequipped
from hansa.common.values.settings.training import LocalPluginSpec

# Returns the numbers start … stop-1 of a piece, by its name, as a flat array.
Read = Callable[[str, int, int], np.ndarray]


@dataclass(frozen=True)
class Piece:
    """One of the arrays that a tensor becomes."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Feedback(Value):
    """What all encodings have in common."""

    feedback: bool = Field(
        True, description="a site adds what an encoding has lost to its next update; it keeps it on its disk"
    )


@contract(ENCODING)
class Encoding(Plugin, Feedback):
    """Writes differences in fewer bytes."""

    @abstractmethod
    def pieces(self, shape: tuple[int, ...]) -> tuple[Piece, ...]:
        """Return what a tensor of a shape becomes. A tensor that would not get smaller is sent as it is."""

    @abstractmethod
    def encode(self, difference: np.ndarray) -> Mapping[str, np.ndarray]:
        """Return the pieces of a float32 array of finite numbers, by name."""

    def require(self, shape: tuple[int, ...], read: Read) -> None:
        """Raise Rejected if the pieces of a tensor are not what `encode` writes: they come from a site."""

    @abstractmethod
    def decode(self, shape: tuple[int, ...], read: Read, start: int, stop: int) -> np.ndarray:
        """Return the numbers start … stop-1 of a difference, flat, in float64."""


def encoding_of(spec: LocalPluginSpec) -> Encoding:
    """Return the encoding that a task asks for."""
    cls = kinds(ENCODING).get(spec.name)
    if cls is None:
        missing = f"the encoding {spec.name!r}, which is not installed here{not_loaded()}"
        raise Unequipped(f"the rule asks for {missing}")
    assert issubclass(cls, Encoding)
    try:
        return cls.model_validate(spec.args)
    except ValidationError as error:
        raise Refused(f"encoding {spec.name!r}: {described(error, cls)}") from None
