"""Fashion-MNIST pictures, 28×28: one hidden layer, so that a run takes seconds."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))


app = App(model=build, task="classification", classes=10)
