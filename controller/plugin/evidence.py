"""What examinations of updates read, and what they find."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import JsonValue

from hansa.common.models.model import ModelSpec
from hansa.controller.plugin.view import Contribution


class Evidence(ABC):
    """The numbers of models, for an examination. All arrays are read only, in the dtype of their tensor.

    The model behind a contribution is its update laid over the model that its site started from: `numbers`
    reads a tensor from the update if the update carries it, else from that model.
    """

    spec: ModelSpec  # of the community model

    @abstractmethod
    def carried(self, contribution: Contribution) -> Sequence[str]:
        """Return the tensors that an update carries: all, or those that its task asked for."""

    @abstractmethod
    def numbers(self, contribution: Contribution, tensor: str) -> np.ndarray:
        """Return a tensor of the model behind a contribution, in its shape."""

    @abstractmethod
    def community(self, tensor: str) -> np.ndarray:
        """Return a tensor of the newest community model, in its shape."""

    @abstractmethod
    def rows(self, contributions: Sequence[Contribution], tensor: str) -> Iterator[np.ndarray]:
        """Yield a tensor of many models as float64, a row for each, cut into columns that fit into memory."""

    @abstractmethod
    def kept(self, name: str) -> np.ndarray | None:
        """Return what an earlier examination by the same part kept under a name."""


@dataclass(frozen=True)
class Findings:
    """What an examination found.

    `facts` go through the journal: JSON without NaN, and small (a few thousand numbers). What is larger and
    must be there in later examinations, such as statistics of every site's last update, is kept in the store:
    one array of numbers by name, in the place of what was kept under the name before; None keeps nothing
    under it any more.
    """

    facts: JsonValue = None
    keep: Mapping[str, np.ndarray | None] = field(default_factory=dict)
