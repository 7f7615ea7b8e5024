"""Which examples make up which batch."""

from collections.abc import Iterator

import torch
from torch import nn

from hansa.common.plugins.registry import register
from hansa.learner.plugins.contract import BatchSource, LocalRun


def normalises(module: nn.Module) -> bool:
    """Whether a network normalises over the batch in its current mode, so that it cannot train on one row."""
    return any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules()
    )


def shuffled(rows: int, size: int, generator: torch.Generator, drop_single: bool) -> Iterator[torch.Tensor]:
    """Yield one epoch's batches of row numbers in random order; the last may be smaller.

    With `drop_single` a last batch of one row is dropped: batch normalisation cannot normalise one value.
    """
    order = torch.randperm(rows, generator=generator)
    for start in range(0, rows, size):
        batch = order[start : start + size]
        if drop_single and len(batch) == 1:
            return
        yield batch


@register("batches", "shuffled")
class Shuffled(BatchSource):
    """All examples, in a new random order for every epoch. This is the default source."""

    def epoch(self, run: LocalRun, generator: torch.Generator) -> Iterator[torch.Tensor]:
        """Yield batches in a random order."""
        return shuffled(len(run.examples), run.work.batch_size, generator, drop_single=False)
