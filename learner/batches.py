"""Which examples make up which batch."""

from collections.abc import Iterator

import torch
from torch import nn


def normalises(module: nn.Module) -> bool:
    """Whether a network, as it is, normalises over the batch, so that a batch of one row is no use."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())


def shuffled(rows: int, size: int, generator: torch.Generator, drop_single: bool) -> Iterator[torch.Tensor]:
    """Yield one epoch's batches of row numbers in random order; the last may be smaller.

    A last batch of one row is dropped if asked: batch normalisation cannot normalise a single value.
    """
    order = torch.randperm(rows, generator=generator)
    for start in range(0, rows, size):
        batch = order[start : start + size]
        if drop_single and len(batch) == 1:
            return
        yield batch
