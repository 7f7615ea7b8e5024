"""The golden app without PyTorch, whose site s3 ends its process in training.

It does so while there is a file `poison` beside its data; the file says "once" or "always".
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hansa import TrainingRun
from tests.golden.apps.plain import app as plain
from tests.golden.apps.plain import train as train_plainly


def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> Mapping[str, np.ndarray]:
    """Train, or die of it."""
    poison = run.data.with_name("poison")
    if run.data.name == "s3" and poison.exists():
        if poison.read_text() == "once":
            poison.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return train_plainly(arrays, run)


app = replace(plain, train=train)
