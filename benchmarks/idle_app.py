"""An app that trains nothing: it changes every parameter a little and notes when.

Its attributes are created on demand: `idle_1000000` has a million float32 parameters; `probed_1000` also
notes when its learner takes a task and when it gets a receipt. Notes go to a file in the folder that is the
site's data.
"""

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np

from hansa import App
from hansa.common.app import TrainingRun
from hansa.common.data.examples import Examples
from hansa.common.values.results import Evaluation

TENSORS = 8
NOTES = "notes.txt"


class _Site:
    """What this process knows of its site; a learner is one process."""

    folder: Path
    step = np.float32(0)


def note(what: str, round_: int) -> None:
    """Append one line: what happened, in which round, when (the monotonic clock is one for all processes)."""
    moment = time.monotonic()
    with (_Site.folder / NOTES).open("a") as notes:
        notes.write(f"{what} {round_} {moment!r}\n")


def _load(path: Path, _split: str) -> Examples:
    """Read the site's folder; its number makes its updates differ from those of other sites."""
    _Site.folder = path
    _Site.step = np.float32(int(path.name.rpartition("-")[2]) / 1024)
    return Examples(np.zeros((16, 1), dtype=np.float32), np.arange(16) % 2)


def _train(arrays: dict[str, np.ndarray], run: TrainingRun) -> dict[str, np.ndarray]:
    note("enter", run.round)
    for array in arrays.values():
        np.add(array, _Site.step, out=array)
    note("leave", run.round)
    return arrays


def _evaluate(_arrays: dict[str, np.ndarray], _examples: Examples) -> Evaluation:
    return Evaluation(n=0, loss_sum=0.0)


def _model(parameters: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1990)
    sizes = [len(part) for part in np.array_split(np.empty(parameters, dtype=np.uint8), TENSORS)]
    return {f"tensor{i}": rng.random(size, dtype=np.float32) for i, size in enumerate(sizes)}


def _probe() -> None:
    """Wrap two functions of this process's learner; the product itself is not changed."""
    from hansa.common.site.daemon import SiteDaemon
    from hansa.learner import daemon as session

    patched: Any = session
    take, hand_in = SiteDaemon.take, patched.hand_in

    def noted_take(self: Any, task: Any) -> None:
        note("take", task.round)
        take(self, task)

    async def noted_hand_in(attendance: Any, task: Any, *more: Any) -> Any:
        note("offer", -1)
        receipt = await hand_in(attendance, task, *more)
        note("receipt", -1)
        return receipt

    SiteDaemon.take = noted_take  # type: ignore[method-assign]
    patched.hand_in = noted_hand_in


def __getattr__(name: str) -> App:
    kind, _, size = name.partition("_")
    if kind not in ("idle", "probed") or not size.isdigit():
        raise AttributeError(name)
    if kind == "probed":
        _probe()
    model = functools.partial(_model, int(size))
    return App(model=model, classes=2, data=_load, train=_train, evaluate=_evaluate)
