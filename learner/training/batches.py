"""Which examples make up which batch."""

from collections.abc import Iterator

import torch
from torch import nn

from hansa.common.plugins.registry import register
from hansa.learner.plugins.contract import BatchSource, LocalRun


def normalises(module: nn.Module) -> bool:
    """Whether a network, as it is, normalises over the batch, so that a batch of one row is no use."""
    return any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules()
    )


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


@register("batches", "shuffled")
class Shuffled(BatchSource):
    """All examples, in an order that is drawn anew for every epoch. A task that names no source has this one."""

    def epoch(self, run: LocalRun, generator: torch.Generator) -> Iterator[torch.Tensor]:
        """Draw an order."""
        return shuffled(len(run.examples), run.work.batch_size, generator, drop_single=False)
