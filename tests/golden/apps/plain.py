"""An app with the same bits on every machine: three layers, trained in numpy by elementwise operations.

Matrix products are sums over columns in a fixed order, so that neither a BLAS nor the width of vector units
makes a difference, and there are no exponentials. The data follow from the site's number, which is all that
its data file holds.
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
    """Return the first model: dyadic fractions from numpy's seeded generator, and a counter."""
    arrays: dict[str, np.ndarray] = {}
    for name, shape in zip(LAYERS, SHAPES, strict=True):
        dtype = np.float64 if name == "second" else np.float32
        arrays[f"{name}.weight"] = ((np.random.randint(0, 64, shape) - 32) / 64).astype(dtype)
        arrays[f"{name}.bias"] = np.zeros(shape[0], dtype)
    arrays["third.count"] = np.zeros((), np.int64)
    return arrays


def data(path: Path, split: str) -> Examples:
    """Return a site's examples: classes overlap; each site has its own shift, scale and number of rows."""
    number = int(path.read_text())
    rows = np.arange(11 + 3 * number if split == "train" else 9)
    y = (rows * (number + 2) + rows // 3) % 3
    noise = np.stack([(rows * step + number) % 17 for step in (5, 7, 11)], axis=1) / 16 - 0.5
    centres = np.array([[1.0, 0.0, -0.5], [-1.0, 0.5, 0.25], [0.25, -1.0, 0.75]])
    return Examples(
        ((centres[y] + noise) * (1 + number / 8) + number / 4).astype(np.float32), y.astype(np.int64)
    )


def train(arrays: dict[str, np.ndarray], run: TrainingRun) -> Mapping[str, np.ndarray]:
    """Make steps of plain gradient descent on squared errors, for the tensors that the task asks for."""
    numbers = {name: array.astype(np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}
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
            for name, slope in _gradient(numbers, run.examples.x[row], int(run.examples.y[row])).items():
                if not run.tensors or name in run.tensors:
                    numbers[name] = numbers[name] - slope * step
        run.progress((number + 1) // batches, 0.5)
    counted = arrays["third.count"] + np.int64(total)
    return {
        name: numbers[name].astype(array.dtype) if name in numbers else counted
        for name, array in arrays.items()
    }


def evaluate(arrays: dict[str, np.ndarray], examples: Examples) -> Evaluation:
    """Count how often the largest output is the right one."""
    numbers = {name: array.astype(np.float64) for name, array in arrays.items() if array.dtype.kind == "f"}
    confusion, loss = [[0] * 3 for _ in range(3)], 0.0
    for x, y in zip(examples.x, examples.y, strict=True):
        outputs = _forward(numbers, x)[-1]
        confusion[int(y)][int(np.argmax(outputs))] += 1
        loss += sum(((outputs - np.eye(3)[y]) ** 2).tolist())
    loss = round(loss * 1024) / 1024  # so that the order in which sites report makes no difference
    return Evaluation(n=len(examples), loss_sum=loss, confusion=confusion)


def _product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    total: np.ndarray = matrix[:, 0] * vector[0]
    for column in range(1, matrix.shape[1]):
        total = total + matrix[:, column] * vector[column]
    return total


def _forward(numbers: Arrays, x: np.ndarray) -> list[np.ndarray]:
    """Return the inputs of each layer, and the outputs."""
    layers = [x.astype(np.float64)]
    for name in LAYERS:
        outputs = _product(numbers[f"{name}.weight"], layers[-1]) + numbers[f"{name}.bias"]
        layers.append(outputs if name == LAYERS[-1] else np.where(outputs > 0, outputs, outputs * SLOPE))
    return layers


def _gradient(numbers: Arrays, x: np.ndarray, y: int) -> dict[str, np.ndarray]:
    layers = _forward(numbers, x)
    gradients: dict[str, np.ndarray] = {}
    slope = layers.pop() - np.eye(3)[y]
    for name in reversed(LAYERS):
        inputs = layers.pop()
        gradients[f"{name}.weight"] = slope[:, None] * inputs[None, :]
        gradients[f"{name}.bias"] = slope
        slope = _product(numbers[f"{name}.weight"].T, slope) * np.where(inputs > 0, 1.0, SLOPE)
    return gradients


app = App(model=model, classes=3, data=data, train=train, evaluate=evaluate)
