"""Apps of the benchmark of simulations: a small perceptron, the same without training, and a CNN."""

import numpy as np
from torch import nn

from hansa import App, Evaluation, Examples, TrainingRun

FEATURES, HIDDEN, CLASSES = 64, 128, 10  # 9610 parameters, as in `peers/`
SIDE = 28  # of the CNN's images


def mlp() -> nn.Module:
    """Return the small perceptron."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def cnn() -> nn.Module:
    """Return a network whose arithmetic takes most of the time."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 4) ** 2, CLASSES),
    )


def _arrays() -> dict[str, np.ndarray]:
    return {name: each.detach().numpy() for name, each in mlp().named_parameters()}


def _unchanged(arrays: dict[str, np.ndarray], _run: TrainingRun) -> dict[str, np.ndarray]:
    return arrays


def _nothing(_arrays: dict[str, np.ndarray], _examples: Examples) -> Evaluation:
    return Evaluation(n=0, loss_sum=0.0)


small = App(model=mlp, classes=CLASSES)
idle = App(model=_arrays, classes=CLASSES, train=_unchanged, evaluate=_nothing)
heavy = App(model=cnn, classes=CLASSES)
