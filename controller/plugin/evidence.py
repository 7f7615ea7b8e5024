"""Evidence and findings: what examinations of updates read and return."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import JsonValue

from hansa.common.models.model import ModelSpec
from hansa.controller.plugin.view import Contribution


class Evidence(ABC):
    """The numbers of models, for an examination. All arrays are read-only and have the dtype of their tensor.

    The model behind a contribution is its update laid over the model that its site started from: `numbers`
    reads a tensor from the update if the update carries it, and from that model otherwise.
    """

    spec: ModelSpec  # of the community model

    @abstractmethod
    def carried(self, contribution: Contribution) -> Sequence[str]:
        """Return the tensors that an update carries: all of them, or those that its task asked for."""

    @abstractmethod
    def numbers(self, contribution: Contribution, tensor: str) -> np.ndarray:
        """Return a tensor of the model behind a contribution, in its shape."""

    @abstractmethod
    def community(self, tensor: str) -> np.ndarray:
        """Return a tensor of the newest community model, in its shape."""

    @abstractmethod
    def rows(self, contributions: Sequence[Contribution], tensor: str) -> Iterator[np.ndarray]:
        """Yield a tensor of many models, one float64 row per model, in blocks of columns that fit memory."""

    @abstractmethod
    def kept(self, name: str) -> np.ndarray | None:
        """Return the array that an earlier examination by the same part kept under a name."""


@dataclass(frozen=True)
class Findings:
    """What an examination found.

    `facts` go through the journal, so they must be JSON without NaN, and small (a few thousand numbers). What
    is larger and needed in later examinations, such as statistics of every site's last update, goes into
    `keep`: arrays by name, which the store keeps. An array replaces the one kept under the same name before;
    None removes it.
    """

    facts: JsonValue = None
    keep: Mapping[str, np.ndarray | None] = field(default_factory=dict)
