"""A site's examples as batches of tensors: kept in memory on the device, or read when they are needed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.data.examples import Examples

LOGITS = "logits"  # what networks of Hugging Face call their scores


class Batch(NamedTuple):
    """Some examples for a network, on the device."""

    inputs: Any  # a tensor; or several: in a tuple, or in a dictionary by name
    targets: Any
    size: int  # examples


class Data(Protocol):
    """A part of a site's data, in batches."""

    usual: int  # examples of a batch if nobody says how many

    def __len__(self) -> int:
        """Return the number of examples."""

    def batches(self, rows: Iterable[torch.Tensor], seed: int, augment: bool) -> Iterator[Batch]:
        """Yield the batches with these row numbers.

        What is random in reading them, and the app's `augment` in training, follows from the seed.
        """

    def in_order(self) -> Iterator[Batch]:
        """Yield every example once, in order."""


@dataclass(frozen=True)
class Tensors:
    """Features and targets in memory, one row each."""

    x: torch.Tensor
    y: torch.Tensor
    usual = 1024

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, rows: Iterable[torch.Tensor], seed: int = 0, augment: bool = False) -> Iterator[Batch]:
        """Yield the batches with these row numbers; nothing is random in that."""
        for chosen in rows:
            yield Batch(self.x[chosen], self.y[chosen], len(chosen))

    def in_order(self) -> Iterator[Batch]:
        """Yield every example once, in order."""
        for start in range(0, len(self), self.usual):
            x, y = self.x[start : start + self.usual], self.y[start : start + self.usual]
            yield Batch(x, y, len(y))


def to_tensors(app: App, examples: Examples, device: str) -> Tensors:
    """Convert arrays: floats to float32, bytes (pixels) scaled to 0 … 1, other integers to int64."""
    x = _features(np.ascontiguousarray(examples.x))
    kind = np.int64 if app.task == "classification" else np.float32
    y = torch.from_numpy(np.ascontiguousarray(examples.y).astype(kind))
    return Tensors(x.to(device), y.to(device))


def _features(x: np.ndarray) -> torch.Tensor:
    if x.dtype == np.uint8:
        return torch.from_numpy(x.astype(np.float32) / np.float32(255))
    if x.dtype.kind == "f":
        return torch.from_numpy(x.astype(np.float32))
    return torch.from_numpy(x.astype(np.int64))


def outputs_of(module: nn.Module, inputs: Any) -> Any:
    """Call a network: a tuple are its arguments in order, a dictionary those by name."""
    if isinstance(inputs, torch.Tensor):
        return module(inputs)
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def scores_of(outputs: Any) -> torch.Tensor:
    """Return what default losses and metrics look at: the tensor, the first of several, or the `logits`."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = outputs.get(LOGITS)
    elif isinstance(outputs, tuple | list):
        found = outputs[0] if outputs else None
    else:
        found = getattr(outputs, LOGITS, None)
    if not isinstance(found, torch.Tensor):
        raise TypeError(
            f"the model returns a {type(outputs).__name__} without a tensor of scores: return a tensor, a"
            " tuple that begins with it, or a dictionary with `logits`, or give the app loss="
        )
    return found


def loss_of(app: App, outputs: Any, targets: Any) -> torch.Tensor:
    """Return the mean loss of a batch, by the app's loss or the default of its task."""
    if app.loss is not None:
        loss: torch.Tensor = app.loss(outputs, targets)
        return loss
    if not isinstance(outputs, torch.Tensor):
        outputs = scores_of(outputs)
    if app.task == "classification":
        return torch.nn.functional.cross_entropy(outputs, targets)
    if app.task == "multilabel":
        # The mean over examples and labels.
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)  # otherwise (n, 1) and (n,) would be broadcast to (n, n)
    return torch.nn.functional.mse_loss(outputs, targets)
