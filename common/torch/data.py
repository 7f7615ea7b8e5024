"""A site's examples as tensors: converted once, kept on the device, indexed by batches."""

from dataclasses import dataclass

import numpy as np
import torch

from hansa.common.app import App
from hansa.common.data.examples import Examples


@dataclass(frozen=True)
class Tensors:
    """Features and targets, one row each."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)


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


def loss_of(app: App, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a batch, by the app's loss or the default of its task."""
    if app.loss is not None:
        loss: torch.Tensor = app.loss(outputs, targets)
        return loss
    if app.task == "classification":
        return torch.nn.functional.cross_entropy(outputs, targets)
    if app.task == "multilabel":
        # The mean over examples and labels.
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)  # otherwise (n, 1) and (n,) would be broadcast to (n, n)
    return torch.nn.functional.mse_loss(outputs, targets)
