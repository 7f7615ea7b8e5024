"""Handwritten digits, 8×8 pixels: a small network, the smallest complete Hansa app."""

from torch import nn

from hansa import App


def build() -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


app = App(model=build, task="classification", classes=10)
