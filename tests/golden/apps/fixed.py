"""The golden apps with first models that owe nothing to chance: what is personal begins with them.

Sites in one process share the seeded generators, so that models that several sites build at the same time
would depend on each other.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from tests.golden.apps import plain as arrays
from tests.golden.apps import pytorch


def _fixed() -> dict[str, np.ndarray]:
    """Return the arrays of the plain app: dyadic fractions."""
    first: dict[str, np.ndarray] = {}
    for number, (name, shape) in enumerate(zip(arrays.LAYERS, arrays.SHAPES, strict=True)):
        dtype = np.float64 if name == "second" else np.float32
        steps = np.arange(shape[0] * shape[1]) * (5 + 2 * number) % 31
        first[f"{name}.weight"] = ((steps - 15) / 32).reshape(shape).astype(dtype)
        first[f"{name}.bias"] = np.zeros(shape[0], dtype)
    return first | {"third.count": np.zeros((), np.int64)}


def _network() -> nn.Module:
    """Return the network of the PyTorch app, with weights at equal distances."""
    network = pytorch.model()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.75, parameter.numel()).view_as(parameter))
    return network


plain = replace(arrays.app, model=_fixed)
app = replace(pytorch.app, model=_network)
