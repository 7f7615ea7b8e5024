"""The networks of the RADFed paper: two hidden layers of 64 for forests, and of 200 for digits."""

from torch import nn

from hansa import App


def forests() -> nn.Module:
    """Return a network for the 49 columns of `covertype-binary`."""
    return nn.Sequential(nn.Linear(49, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def digits() -> nn.Module:
    """Return a network for pictures of 28×28 pixels."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


covertype = App(model=forests, task="classification", classes=2)
mnist = App(model=digits, task="classification", classes=10)
