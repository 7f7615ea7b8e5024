"""The user's app: the only code a user must write, and how a reference leads to it.

from hansa import App
app = App(model=build_cnn, task="classification", classes=10)
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from zipfile import BadZipFile, is_zipfile

import numpy as np
from pydantic import ValidationError

from hansa.common.values.errors import HansaError, InvalidApp, InvalidData, Refused, one_line
from hansa.common.values.tasks import COLUMNS, Evaluation, OptimizerSpec
from hansa.common.values.words import counted

log = logging.getLogger(__name__)
TaskKind = Literal["classification", "multilabel", "regression"]


@dataclass(frozen=True)
class Examples:
    """Some of a site's data: features and labels, one row each."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: np.ndarray) -> "Examples":
        """Return the rows at `indices`."""
        return Examples(self.x[indices], self.y[indices])


@dataclass(frozen=True)
class TrainingRun:
    """What a user's own `train` function gets beside the model: data, settings, and a line to the controller."""

    examples: Examples
    epochs: int
    batch_size: int
    optimizer: OptimizerSpec
    seed: int  # of 32 bits, as numpy.random.seed and other libraries take it; of this task
    round: int
    turn: int  # which of the job's trainings in turn this is: hops where models travel, else rounds; for schedules
    steps: int  # if not 0: make so many optimizer steps instead of epochs
    progress: Callable[[int, float], None]  # (finished epochs, mean loss)
    cancelled: Callable[[], bool]
    tensors: tuple[
        str, ...
    ] = ()  # that the rule wants trained; what becomes of the others does not count. None: all
    device: str = "cpu"  # the learner's --device
    data: Path = Path()  # the learner's --data


@dataclass(frozen=True)
class App:
    """A model and how to train it.

    model:      returns the network (a torch module), or, with `train` and `evaluate` given, a dict of numpy arrays
    task:       "classification" (integer labels 0 … classes-1), "multilabel" (rows of 0 and 1) or "regression"
    classes:    how many classes there are, or labels of which an example may have several
    data:       (path, split) -> Examples for split "train" or "test"; default: .npz, .csv, .parquet, folders of images
    label:      which column of a table is the label; default: y, label, target, class, or the last
    columns:    which columns of a table are the features, in this order; default: all columns of numbers
    class_names: the words that are labels, if they are words; in alphabetical order, which numbers them 0, 1, 2 …
    loss:       (outputs, targets) -> mean loss; default: cross-entropy (binary, for multilabel) or mean squared error
    transform:  applied to each batch of features in training only, such as augmentation
    train:      (arrays, TrainingRun) -> arrays, for any other framework
    evaluate:   (arrays, Examples) -> Evaluation
    """

    model: Callable[[], Any]
    task: TaskKind = "classification"
    classes: int | None = None
    data: Callable[[Path, str], Examples] | None = None
    loss: Callable[[Any, Any], Any] | None = None
    transform: Callable[[Any], Any] | None = None
    train: Callable[[dict[str, np.ndarray], TrainingRun], Mapping[str, np.ndarray]] | None = None
    evaluate: Callable[[dict[str, np.ndarray], Examples], Evaluation] | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.task not in get_args(TaskKind):
            raise InvalidApp(f"task {self.task!r}: write 'classification', 'multilabel' or 'regression'")
        if self.task == "classification" and (self.classes is None or self.classes < 2):
            raise InvalidApp("a classification app needs classes=, the number of classes (2 or more)")
        if self.task == "multilabel" and not 1 <= (self.classes or 0) <= COLUMNS:
            raise InvalidApp(f"a multilabel app needs classes=, the number of labels (1 to {COLUMNS})")
        if not callable(self.model) or _is_network(self.model):
            raise InvalidApp("model= must be a function that returns the network, not the network itself")
        if self.class_names and (self.task != "classification" or len(set(self.class_names)) != self.classes):
            raise InvalidApp(
                "class_names= must name each of the app's classes once, and only with task 'classification'"
            )
        if list(self.class_names) != sorted(
            self.class_names
        ):  # as a set is numbered that is split across sites
            names = ", ".join(map(repr, sorted(self.class_names)))
            raise InvalidApp(
                f"class_names= must be in alphabetical order, which numbers the classes: ({names})"
            )
        if isinstance(self.columns, str) or len(set(self.columns)) < len(self.columns):
            raise InvalidApp("columns= must name each feature once, such as columns=('age', 'weight')")
        if self.data is not None and (self.label or self.columns or self.class_names):
            raise InvalidApp(
                "label=, columns= and class_names= are for tables that Hansa reads; data= reads them itself"
            )
        if (self.train is None) != (self.evaluate is None):
            raise InvalidApp("give both train= and evaluate=, or neither")

    def measured(self, arrays: Mapping[str, np.ndarray], examples: Examples) -> Evaluation:
        """Let the user's own function evaluate a copy of a model; what it returns must be an Evaluation."""
        assert self.evaluate is not None
        try:
            found: object = self.evaluate({name: array.copy() for name, array in arrays.items()}, examples)
        except ValidationError as error:
            from hansa.common.job.check import described  # slow to load, and seldom needed

            raise Refused(f"the app's evaluate function made nonsense: {described(error)}") from None
        if not isinstance(found, Evaluation):
            raise Refused(f"the app's evaluate function returned {type(found).__name__}, not an Evaluation")
        if found.n and not {len(found.confusion), len(found.labels)} <= {0, self.classes or 0}:
            size = max(len(found.confusion), len(found.labels))
            raise Refused(
                f"the app's evaluate function counted {size} classes, the app says classes={self.classes}"
            )
        return found

    def load(self, path: Path, split: str) -> Examples:
        """Load a site's data for a split and check that it can be learned from."""
        try:
            examples = self._read(path, split)
        except HansaError:
            raise
        except Exception as error:
            raise InvalidData(f"{path}: the app's data loader failed: {one_line(error)}") from error
        return check_examples(self, examples, path)

    def _read(self, path: Path, split: str) -> Examples:
        if self.data is not None:
            return self.data(path, split)
        from hansa.common.data.own import read_site  # it knows apps

        held = read_site(self, path, split)
        if split == "test" and not held.tested:
            log.warning("%s has no test rows of its own: all its rows are taken as test data", path)
        return held.examples


def _is_network(model: object) -> bool:
    """Whether it is a network of PyTorch, which can be called, too, and not a class or a function that makes one."""
    return hasattr(model, "state_dict") and not isinstance(model, type)


def load_npz(path: Path, split: str) -> Examples:
    """Read x and y (or x_test and y_test, if the file has them and the test split is asked for)."""
    try:
        if path.is_file() and not is_zipfile(path):  # numpy would speak of pickles
            raise InvalidData(f"{path}: not a whole .npz file; `np.savez(path, x=…, y=…)` makes one")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            tested = split == "test" and "x_test" in held and "y_test" in held
            names = ("x_test", "y_test") if tested else ("x", "y")
            missing = [name for name in names if name not in held]
            if missing:
                raise InvalidData(
                    f"{path}: no array {missing[0]!r} in it; it has {', '.join(held.files) or 'none'}"
                )
            return Examples(held[names[0]], held[names[1]])
    except (OSError, ValueError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        if "Object arrays" in str(error):  # numpy would have to run what the file says to read them
            raise InvalidData(
                f"{path}: x or y is an array of Python objects; make arrays of numbers, such as x.astype(np.float32)"
            ) from None
        raise InvalidData(f"{path}: not a readable .npz file: {one_line(error)}") from None


def check_examples(app: App, examples: Examples, path: Path) -> Examples:
    """Refuse data with rows that do not match, labels out of range, NaN or infinite values."""
    x, y = np.asarray(examples.x), np.asarray(examples.y)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise InvalidData(
            f"{path}: x has shape {list(x.shape)} and y {list(y.shape)}: they need one row per example"
        )
    if x.dtype.kind not in "fiub":
        raise InvalidData(f"{path}: x holds {x.dtype.name}; numbers are needed")
    if app.task == "classification":
        if y.dtype.kind not in "iu":
            raise InvalidData(f"{path}: labels must be integers, these are {y.dtype.name}")
        _refuse_labels_over((app.classes or 0) - 1, y, path)
    elif app.task == "multilabel":
        if y.dtype.kind not in "iub":
            raise InvalidData(f"{path}: labels must be integers or booleans, these are {y.dtype.name}")
        if y.shape[1:] != (app.classes,):
            raise InvalidData(
                f"{path}: y has shape {list(y.shape)}: it needs {counted(app.classes or 0, 'column')} of 0 and 1"
            )
        _refuse_labels_over(1, y, path)
    elif y.dtype.kind not in "fiub":
        raise InvalidData(f"{path}: y holds {y.dtype.name}; numbers are needed")
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            rows = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
            raise InvalidData(
                f"{path}: {name} holds NaN or infinite values in {counted(rows.size, 'row')}, first in row {rows[0]}"
            )
    return Examples(x, y)


def _refuse_labels_over(most: int, y: np.ndarray, path: Path) -> None:
    wrong = np.flatnonzero((y < 0) | (y > most))
    if wrong.size:
        at = np.unravel_index(wrong[0], y.shape)
        raise InvalidData(
            f"{path}: label {y[at]} at row {at[0]} is outside 0 … {most} ({counted(wrong.size, 'such label')})"
        )


def load_app(ref: str) -> App:
    """Resolve `path/to/app.py:attribute` or `package.module:attribute`."""
    place, _, attribute = ref.rpartition(":")
    if not place or not attribute:
        raise InvalidApp(
            f"{ref!r} is no app reference: write path/to/app.py:attribute or package.module:attribute"
        )
    try:
        module = _module_at(Path(place)) if place.endswith(".py") else _module_named(place)
    except HansaError as error:  # of an App that makes no sense: it does not know where it stands
        said = str(error)
        raise InvalidApp(said if said.startswith(place) else f"{ref}: {said}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InvalidApp(f"{ref}: importing it failed: {one_line(error)}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise InvalidApp(f"{ref}: {place} has no attribute {attribute!r}")
    if not isinstance(found, App):
        raise InvalidApp(f"{ref}: {attribute} is of type {type(found).__name__}; it must be a hansa.App")
    return found


def _module_named(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(Path.cwd()))


def _module_at(path: Path) -> Any:
    if not path.is_file():
        raise InvalidApp(f"{path}: no such file (looked from {Path.cwd()})")
    name = f"hansa_app_{path.stem}_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that classes of the app can be found by name
    sys.path.insert(0, str(path.resolve().parent))  # an app may have modules beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
