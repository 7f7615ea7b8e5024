"""Training by a function of the app's own, in any framework: it gets arrays and returns arrays."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.app import App, TrainingRun
from hansa.common.data.lazy import AnyExamples
from hansa.common.torch.seeding import seed_generators
from hansa.common.values.bounds import STEPS
from hansa.common.values.errors import Refused
from hansa.common.values.tasks import Task, Train
from hansa.learner.training.slow import Drag, require_wanted
from hansa.learner.training.window import Window


def train_own(
    app: App,
    task: Task,
    work: Train,
    seed: int,
    arrays: dict[str, np.ndarray],
    examples: AnyExamples,
    progress: Callable[[int, int, float], None],
    drag: Drag,
    window: Window | None,
    device: str = "cpu",
    data: Path = Path(),
) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """Let the app's function train; it may change the arrays. In a window it gets the window's examples only.

    A window that covers several passes over the data is trained on pass by pass, so that it takes no more
    memory than the data itself.
    """
    seed_generators(seed)
    if window is None:
        return _call(app, task, work, seed, arrays, examples, progress, drag, device, data)
    once = work.model_copy(update={"epochs": 1, "steps": 0})
    trained: Mapping[str, np.ndarray] = arrays
    total = {"n_used": 0, "steps": 0, "epochs": 0.0, "seconds": 0.0}
    for rows in window.passes(drag):
        steps = int(total["steps"])

        def report(epoch: int, own: int, loss: float, before: int = steps) -> None:
            progress(epoch, before + own, loss)

        part = examples.take(rows.numpy())
        start = arrays | dict(trained)
        trained, facts = _call(app, task, once, seed, start, part, report, drag, device, data)
        facts["epochs"] *= len(part) / len(examples)
        total = {name: value + facts[name] for name, value in total.items()}
    return trained, total


def _call(
    app: App,
    task: Task,
    work: Train,
    seed: int,
    arrays: dict[str, np.ndarray],
    examples: AnyExamples,
    progress: Callable[[int, int, float], None],
    drag: Drag,
    device: str,
    data: Path,
) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """Call the app's function once."""
    assert app.train is not None
    per_epoch = -(-len(examples) // work.batch_size)
    steps = work.steps or work.epochs * per_epoch
    if steps > STEPS:  # checked first, because an update with more steps would be refused
        raise Refused(f"the task asks for {steps} steps ({work.epochs} epochs); at most {STEPS} are allowed")
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
    trained = app.train(arrays, run)
    require_wanted(drag)
    seconds = time.monotonic() - started
    epochs = steps / per_epoch if per_epoch else 0.0
    used = round(epochs * len(examples))
    return trained, {"n_used": used, "steps": steps, "epochs": epochs, "seconds": seconds}
