"""An app whose bits are the same on every machine: three layers, trained in numpy by elementwise operations alone.

Products with matrices are sums over their columns in a fixed order, so neither a BLAS nor the width of vector
units has a say; there are no exponentials. Data follow from the site's number, which is all that its data
file holds.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hansa import App, Evaluation, Examples, TrainingRun

Arrays = Mapping[str, np.ndarray]
LAYERS = ("first", "second", "third")
SHAPES = ((4, 3), (4, 4), (3, 4))
SLOPE = 0.125  # of the activation below zero


def model() -> dict[str, np.ndarray]:
    """Return the first model: dyadic fractions from numpy's seeded generator, in float32 and float64, and a counter."""
    made: dict[str, np.ndarray] = {}
    for name, shape in zip(LAYERS, SHAPES, strict=True):
        dtype = np.float64 if name == "second" else np.float32
        made[f"{name}.weight"] = ((np.random.randint(0, 64, shape) - 32) / 64).astype(dtype)
        made[f"{name}.bias"] = np.zeros(shape[0], dtype)
    made["third.count"] = np.zeros((), np.int64)
    return made


def data(path: Path, split: str) -> Examples:
    """Return the examples of a site: classes overlap, and each site has its own shift, scale and number of rows."""
    number = int(path.read_text())
    rows = np.arange(11 + 3 * number if split == "train" else 9)
    y = (rows * (number + 2) + rows // 3) % 3
    noise = np.stack([(rows * step + number) % 17 for step in (5, 7, 11)], axis=1) / 16 - 0.5
    centres = np.array([[1.0, 0.0, -0.5], [-1.0, 0.5, 0.25], [0.25, -1.0, 0.75]])
    return Examples(
        ((centres[y] + noise) * (1 + number / 8) + number / 4).astype(np.float32), y.astype(np.int64)
    )


def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> Mapping[str, np.ndarray]:
    """Make steps of plain gradient descent on squared errors; only what the task asks for is trained."""
    held = {name: array.astype(np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}
    rows, step = len(run.examples), run.optimizer.lr
    batches = -(-rows // run.batch_size)
    chance = np.random.default_rng(run.seed)
    order: np.ndarray = np.arange(0)
    total = run.steps or run.epochs * batches
    for number in range(total):
        if number % batches == 0:
            order = chance.permutation(rows)
        start = number % batches * run.batch_size
        for row in order[start : start + run.batch_size]:
            for name, slope in _gradient(held, run.examples.x[row], int(run.examples.y[row])).items():
                if not run.tensors or name in run.tensors:
                    held[name] = held[name] - slope * step
        run.progress((number + 1) // batches, 0.5)
    counted = arrays["third.count"] + np.int64(total)
    return {
        name: held[name].astype(array.dtype) if name in held else counted for name, array in arrays.items()
    }


def evaluate(arrays: dict[str, np.ndarray], examples: Examples) -> Evaluation:
    """Count how often the largest output is the right one."""
    held = {name: array.astype(np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}
    confusion, loss = [[0] * 3 for _ in range(3)], 0.0
    for x, y in zip(examples.x, examples.y, strict=True):
        outputs = _forward(held, x)[-1]
        confusion[int(y)][int(np.argmax(outputs))] += 1
        loss += sum(((outputs - np.eye(3)[y]) ** 2).tolist())
    loss = round(loss * 1024) / 1024  # the sum of all sites' losses is the same in whatever order they come
    return Evaluation(n=len(examples), loss_sum=loss, confusion=confusion)


def _product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    total: np.ndarray = matrix[:, 0] * vector[0]
    for column in range(1, matrix.shape[1]):
        total = total + matrix[:, column] * vector[column]
    return total


def _forward(held: Arrays, x: np.ndarray) -> list[np.ndarray]:
    """Return what goes into each layer, and the outputs."""
    seen = [x.astype(np.float64)]
    for name in LAYERS:
        reached = _product(held[f"{name}.weight"], seen[-1]) + held[f"{name}.bias"]
        seen.append(reached if name == LAYERS[-1] else np.where(reached > 0, reached, reached * SLOPE))
    return seen


def _gradient(held: Arrays, x: np.ndarray, y: int) -> dict[str, np.ndarray]:
    seen = _forward(held, x)
    found: dict[str, np.ndarray] = {}
    slope = seen.pop() - np.eye(3)[y]
    for name in reversed(LAYERS):
        given = seen.pop()
        found[f"{name}.weight"] = slope[:, None] * given[None, :]
        found[f"{name}.bias"] = slope
        slope = _product(held[f"{name}.weight"].T, slope) * np.where(given > 0, 1.0, SLOPE)
    return found


app = App(model=model, classes=3, data=data, train=train, evaluate=evaluate)
