"""The buffers of a network that stay at a site: batch-norm statistics and counters (baselines §7)."""

import torch
from torch import nn

from hansa.common.torch.data import Data, outputs_of
from hansa.common.values.errors import InvalidData

BATCH = 256
Statistics = dict[str, torch.Tensor]


def statistics_of(module: nn.Module) -> Statistics:
    """Return copies of a network's buffers."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


@torch.no_grad()
def put_statistics(module: nn.Module, statistics: Statistics) -> None:
    """Restore a network's buffers."""
    for name, buffer in module.named_buffers():
        if name in statistics:
            buffer.copy_(statistics[name])


@torch.no_grad()
def estimate_statistics(module: nn.Module, data: Data) -> None:
    """Estimate a network's batch-norm statistics on some data; labels are not used.

    Everything except batch norm is in evaluation mode, because dropout would distort the statistics. All
    batches have the same weight, so they are of nearly equal size. They are drawn at random, because in data
    sorted by class no batch is as varied as the whole.
    """
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    norms = [part for part in norms if part.track_running_stats]
    if not norms:
        return
    if len(data) < 2:
        raise InvalidData(
            "there are too few training examples here to estimate the model's batch-norm statistics"
        )
    usual = [part.momentum for part in norms]
    module.eval()
    for part in norms:
        part.reset_running_stats()
        part.momentum = None  # the mean over all batches
        part.train()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    size = min(BATCH, data.usual)
    for inputs, _, _ in data.batches(order.tensor_split(-(-len(data) // size)), seed=0, augment=False):
        outputs_of(module, inputs)
    for part, momentum in zip(norms, usual, strict=True):
        part.momentum = momentum
    module.eval()
