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
from typing import Any, get_args

import numpy as np
from pydantic import ValidationError

from hansa.common.data.examples import Examples, check_examples
from hansa.common.data.own import read_site
from hansa.common.values.bounds import COLUMNS
from hansa.common.values.errors import HansaError, InvalidApp, InvalidData, Refused, one_line
from hansa.common.values.results import Evaluation
from hansa.common.values.stated import OWN, Stated, TaskKind
from hansa.common.values.training import OptimizerSpec

log = logging.getLogger(__name__)


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
    # That the rule wants trained; what becomes of the others does not count. None: all.
    tensors: tuple[str, ...] = ()
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
        # As a set is numbered that is split across sites.
        if list(self.class_names) != sorted(self.class_names):
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

    def stated(self, source: str = "", changed: bool = False) -> Stated:
        """Return what a site states of the app when it enrols; `source` is the digest of its source."""
        task = OWN if self.evaluate is not None else self.task
        return Stated(task=task, classes=self.classes or 0, source=source, changed=changed)

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
        held = read_site(self, path, split)
        if split == "test" and not held.tested:
            log.warning("%s has no test rows of its own: all its rows are taken as test data", path)
        return held.examples


def _is_network(model: object) -> bool:
    """Whether it is a network of PyTorch, which can be called, too, and not a class or a function that makes one."""
    return hasattr(model, "state_dict") and not isinstance(model, type)


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
