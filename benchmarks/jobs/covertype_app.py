"""Forest cover types, two classes: the network with two hidden layers of 64 of the RADFed paper."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return two hidden layers."""
    return nn.Sequential(nn.Linear(49, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


app = App(model=build, task="classification", classes=2)
