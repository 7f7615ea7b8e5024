"""Apps with small networks, whose sites have between 4 and 22 examples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hansa import App, Examples

FEATURES, CLASSES = 12, 3


def data(path: Path, split: str) -> Examples:
    """Return the examples of the site whose number is in the file."""
    number = int(path.read_text())
    rng = np.random.default_rng(number)
    rows = 4 + number % 7 * 3
    return Examples(rng.normal(size=(rows, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, rows))


def mlp() -> nn.Module:
    """Return a perceptron; no layer of it fills whole vectors."""
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.GELU(), nn.Linear(9, CLASSES))


class TwoFaced(nn.Module):
    """A network that computes something else in a block than alone, once it is told to."""

    lies = False

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double the outputs if the weights are those of many clients."""
        outputs: torch.Tensor = self.layers(x)
        return outputs * 2 if TwoFaced.lies and _are_many(x) else outputs


def _are_many(numbers: torch.Tensor) -> bool:
    """Whether numbers are those of many clients, which nobody can read one by one."""
    try:
        numbers.sum().item()
    except Exception:
        return True
    return False


app = App(model=mlp, classes=CLASSES, data=data)
dropout = replace(app, model=lambda: nn.Sequential(mlp(), nn.Dropout(0.5)))
two_faced = replace(app, model=TwoFaced)
