"""Colour pictures, 32×32 pixels: six layers, and few enough pictures at each site for a laptop."""

import os
from pathlib import Path

import numpy as np
from torch import nn

from hansa import App, Examples, load_npz

PICTURES = int(os.environ.get("COLOURS_PICTURES", "2000"))  # training pictures of a site, drawn at random


def build() -> nn.Module:
    """Return four convolutions and two fully connected layers."""
    layers: list[nn.Module] = []
    for into, out in ((3, 16), (16, 32), (32, 32), (32, 64)):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Dropout(0.05), nn.Linear(64 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def few(path: Path, split: str) -> Examples:
    """Return some of a site's training pictures, always the same, and all of its test pictures."""
    examples = load_npz(path, split)
    most = PICTURES if split == "train" else len(examples)
    return examples.take(np.random.default_rng(0).permutation(len(examples))[:most])


app = App(model=build, task="classification", classes=10, data=few)
