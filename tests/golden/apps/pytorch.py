"""A small PyTorch app with batch norm, for what only PyTorch's training loop does; bits differ by machine."""

from torch import nn

from hansa import App
from tests.golden.apps.plain import data


def model() -> nn.Module:
    """Return two layers with a norm between them; a bias before it would only have rounding errors."""
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


app = App(model=model, classes=3, data=data)
