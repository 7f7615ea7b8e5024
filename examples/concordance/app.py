"""Pictures of clothes, 28×28 pixels: the network with two hidden layers of the FedMMB paper (2FNN)."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return two hidden layers of 200. Nothing depends on the batch, as exact concordance requires."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


app = App(model=build, task="classification", classes=10)
