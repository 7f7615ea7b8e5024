"""Handwritten digits, 28×28 pixels: a small convolutional network."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return two convolutions and one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


app = App(model=build, task="classification", classes=10)
