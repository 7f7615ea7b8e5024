"""An app that trains by waiting: a step takes the same time on a busy machine, so many sites can share one.

After every step it asks whether its task was withdrawn; this is where `hansa learner start --slow` slows it
down.
"""

import time
from pathlib import Path

import numpy as np

from hansa import App
from hansa.common.app import TrainingRun
from hansa.common.data.examples import Examples
from hansa.common.values.results import Evaluation

STEP = 0.02  # seconds
ROWS = 80


def _load(_path: Path, _split: str) -> Examples:
    return Examples(np.zeros((ROWS, 1), dtype=np.float32), np.arange(ROWS) % 2)


def _train(arrays: dict[str, np.ndarray], run: TrainingRun) -> dict[str, np.ndarray]:
    for _ in range(run.steps or run.epochs * -(-len(run.examples) // run.batch_size)):
        time.sleep(STEP)
        arrays["weight"] += np.float32(1)
        if run.cancelled():
            break
    return arrays


def _evaluate(_arrays: dict[str, np.ndarray], examples: Examples) -> Evaluation:
    half = len(examples) // 2
    return Evaluation(n=2 * half, loss_sum=float(half), confusion=((half, 0), (half, 0)) if half else ())


app = App(
    model=lambda: {"weight": np.zeros(1000, dtype=np.float32)},
    classes=2,
    data=_load,
    train=_train,
    evaluate=_evaluate,
)
