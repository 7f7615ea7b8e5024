"""Apps for schedules that are computed by hand: 40 examples and 4096 bytes of parameters at every site."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from hansa import App, Evaluation, Examples, TrainingRun


def data(path: Path, split: str) -> Examples:
    """Return the same 40 examples for every site."""
    rows = np.arange(40)
    return Examples(((rows[:, None] * np.arange(1, 32)) % 7).astype(np.float32), rows % 2)


def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> Mapping[str, np.ndarray]:
    """Let every update differ from all others."""
    return {"weight": arrays["weight"] + np.float32(run.seed % 1000 + run.round)}


def fail_once(arrays: dict[str, np.ndarray], run: TrainingRun) -> Mapping[str, np.ndarray]:
    """Fail at site b, the first time."""
    if run.data.name == "b" and run.round == 1:
        raise ValueError("a first attempt")
    return train(arrays, run)


def evaluate(arrays: dict[str, np.ndarray], examples: Examples) -> Evaluation:
    """Return a loss."""
    return Evaluation(n=len(examples), loss_sum=float(arrays["weight"][0, 0]))


plain = App(
    model=lambda: {"weight": np.zeros((32, 32), np.float32)},
    classes=2,
    data=data,
    train=train,
    evaluate=evaluate,
)
failing = replace(plain, train=fail_once)
network = App(model=lambda: nn.Linear(31, 32), classes=32, data=data)
