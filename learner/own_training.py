"""Training by a function of the app's own, in whatever framework: it gets arrays and returns arrays."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.app import App, Examples, TrainingRun
from hansa.common.tasks import Task, Train
from hansa.learner.slow import Drag
from hansa.learner.trainer import Cancelled
from hansa.learner.window import Window


def train_own(
    app: App,
    task: Task,
    work: Train,
    seed: int,
    arrays: dict[str, np.ndarray],
    examples: Examples,
    progress: Callable[[int, int, float], None],
    drag: Drag,
    window: Window | None,
    device: str = "cpu",
    data: Path = Path(),
) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """Let the user's own function train; the arrays are its own. A window's examples are all that it gets."""
    assert app.train is not None
    share = 1.0
    if window is not None:
        share = len(window.examples) / max(len(examples), 1)
        examples = examples.take(window.examples.numpy())
        work = work.model_copy(update={"epochs": 1, "steps": 0})
    per_epoch = -(-len(examples) // work.batch_size)
    run = TrainingRun(
        examples=examples,
        epochs=work.epochs,
        batch_size=work.batch_size,
        optimizer=work.optimizer,
        seed=seed % (1 << 32),
        round=task.round,
        turn=task.turn or task.round,
        steps=work.steps,
        tensors=work.tensors,
        progress=lambda epoch, loss: progress(epoch, epoch * per_epoch, loss),
        cancelled=drag,
        device=device,
        data=data,
    )
    started = time.monotonic()
    made = app.train(arrays, run)
    if drag():
        raise Cancelled("the task was withdrawn")
    seconds = time.monotonic() - started
    steps = work.steps or work.epochs * per_epoch
    epochs = steps / per_epoch if per_epoch else 0.0
    used = round(epochs * len(examples))
    return made, {"n_used": used, "steps": steps, "epochs": epochs * share, "seconds": seconds}
