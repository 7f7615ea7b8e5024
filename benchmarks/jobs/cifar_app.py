"""CIFAR-10 pictures, 3×32×32: two convolutions, as in Metis's experiments but smaller."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return two convolutions, each followed by pooling, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 10),
    )


app = App(model=build, task="classification", classes=10)
