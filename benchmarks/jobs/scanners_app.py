"""Fashion-MNIST pictures as five scanners would deliver them: the pictures of each site look different."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from hansa import App, Examples, load_npz

SCANNERS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: x,
    lambda x: 0.3 * x,  # dark
    lambda x: 0.5 + 0.5 * x,  # pale
    lambda x: x**0.4,  # another gamma
    lambda x: 1 - x,  # inverted
)


def load(path: Path, split: str) -> Examples:
    """Return a site's pictures, scanned: site-1 has the first scanner, site-2 the second, and so on."""
    examples = load_npz(path, split)
    scan = SCANNERS[(int(path.stem.rpartition("-")[2]) - 1) % len(SCANNERS)]
    return Examples(scan(examples.x.astype(np.float32) / np.float32(255)).astype(np.float32), examples.y)


def build() -> nn.Module:
    """Return a network with one hidden layer that is normalised."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    )


def build_plain() -> nn.Module:
    """Return the same network without the normalisation."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))


app = App(model=build, task="classification", classes=10, data=load)
plain = App(model=build_plain, task="classification", classes=10, data=load)
