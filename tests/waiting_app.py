"""The golden app without PyTorch, whose training waits while there is a file `wait` in its sites' folder."""

import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hansa import TrainingRun
from tests.golden.apps.plain import app as plain
from tests.golden.apps.plain import train as train_plainly
from tests.waiting import until


def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> Mapping[str, np.ndarray]:
    """Say which process trains, wait, and train."""
    folder = run.data.parent
    if (folder / "wait").exists():
        (folder / f"busy-{os.getpid()}").touch()
        until(lambda: not (folder / "wait").exists(), 100)
    return train_plainly(arrays, run)


app = replace(plain, train=train)
