"""Fashion-MNIST pictures, 28×28: one hidden layer, so that a run takes seconds."""

import time

import torch
from torch import nn

from hansa import App

STEP = 0.005  # seconds


def build() -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))


def wait(features: torch.Tensor) -> torch.Tensor:
    """Let a step take time, so that sites can be slow without competing for the machine's cores."""
    time.sleep(STEP)
    return features


app = App(model=build, task="classification", classes=10)
paced = App(model=build, task="classification", classes=10, transform=wait)
