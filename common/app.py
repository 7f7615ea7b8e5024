"""The user's app, which is the only code that a user must write, and how it is loaded from a reference.

from hansa import App
app = App(model=build_cnn, task="classification", classes=10)
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import ValidationError

from hansa.common.data.examples import ALL, Examples, check_examples, joined
from hansa.common.data.lazy import AnyExamples, Origin, check_dataset, joined_lazily
from hansa.common.data.own import read_site
from hansa.common.data.site_files import own_test_rows
from hansa.common.values.bounds import COLUMNS
from hansa.common.values.errors import HansaError, InvalidApp, InvalidData, Refused, one_line
from hansa.common.values.results import Evaluation
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.stated import OWN, Stated, TaskKind

log = logging.getLogger(__name__)
WORKERS = 64  # processes that read for one app


@dataclass(frozen=True)
class TrainingRun:
    """What a user's own `train` function gets besides the model: data, settings, a way to report progress."""

    examples: (
        Any  # Examples; or, if the app's data are a Dataset, a map-style Dataset of the rows to train on
    )
    epochs: int
    batch_size: int
    optimizer: OptimizerSpec
    seed: int  # of this task; 32 bits, as numpy.random.seed and other libraries expect
    round: int
    turn: int  # counts hops if models travel, otherwise rounds; for learning-rate schedules
    steps: int  # if not 0: make this many optimizer steps instead of epochs
    progress: Callable[[int, float], None]  # (finished epochs, mean loss)
    cancelled: Callable[[], bool]
    # The tensors that the rule wants trained; changes to others are ignored. Empty: all.
    tensors: tuple[str, ...] = ()
    device: str = "cpu"  # the learner's --device
    data: Path = Path()  # the learner's --data


@dataclass(frozen=True)
class App:
    """A model and how to train it.

    model:      returns the network (a torch module), or, with `train` and `evaluate`, a dict of numpy arrays
    task:       "classification" (labels 0 … classes-1), "multilabel" (rows of 0 and 1) or "regression"
    classes:    the number of classes, or of labels of which an example may have several
    data:       (path, split) -> Examples, or a map-style Dataset, for split "train" or "test";
                default: .npz, .csv, .parquet, folders of images
    collate:    for a Dataset: (examples) -> batch; default: torch's default_collate
    augment:    for a Dataset: (example) -> example, in training only, such as a random crop
    workers:    for a Dataset: processes that read batches ahead; default: none
    label:      the column of a table that is the label; default: y, label, target, class, or the last
    columns:    the columns of a table that are the features, in this order; default: all columns of numbers
    class_names: the labels, if they are words; in alphabetical order, which numbers them 0, 1, 2 …
    loss:       (outputs, targets) -> mean loss;
                default: cross-entropy (binary, for multilabel) or mean squared error
    transform:  applied to each batch of features, in training only, such as augmentation
    train:      (arrays, TrainingRun) -> arrays, for any other framework
    evaluate:   (arrays, Examples or Dataset) -> Evaluation
    """

    model: Callable[[], Any]
    task: TaskKind = "classification"
    classes: int | None = None
    data: Callable[[Path, str], Any] | None = None
    loss: Callable[[Any, Any], Any] | None = None
    transform: Callable[[Any], Any] | None = None
    train: Callable[[dict[str, np.ndarray], TrainingRun], Mapping[str, np.ndarray]] | None = None
    evaluate: Callable[[dict[str, np.ndarray], Any], Evaluation] | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None
    augment: Callable[[Any], Any] | None = None
    workers: int = 0
    ref: str = field(default="", init=False, compare=False, repr=False)  # what `load_app` found it by

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
        # A data set that is split across sites numbers its classes in this order.
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
        if not isinstance(self.workers, int) or not 0 <= self.workers <= WORKERS:
            raise InvalidApp(f"workers= is a number of processes that read batches ahead: 0 to {WORKERS}")
        if self.data is None and (self.collate or self.augment or self.workers):
            raise InvalidApp(
                "collate=, augment= and workers= are for a Dataset; give data=, which returns it"
            )
        if (self.train is None) != (self.evaluate is None):
            raise InvalidApp("give both train= and evaluate=, or neither")

    def measured(self, arrays: Mapping[str, np.ndarray], examples: AnyExamples) -> Evaluation:
        """Evaluate a copy of a model with the user's own function, which must return an Evaluation."""
        assert self.evaluate is not None
        try:
            result: object = self.evaluate({name: array.copy() for name, array in arrays.items()}, examples)
        except ValidationError as error:
            from hansa.common.job.check import described  # slow to load, and seldom needed

            raise Refused(
                f"the app's evaluate function made an invalid Evaluation: {described(error)}"
            ) from None
        if not isinstance(result, Evaluation):
            raise Refused(f"the app's evaluate function returned {type(result).__name__}, not an Evaluation")
        if result.n and not {len(result.confusion), len(result.labels)} <= {0, self.classes or 0}:
            size = max(len(result.confusion), len(result.labels))
            raise Refused(
                f"the app's evaluate function counted {size} classes, but the app has classes={self.classes}"
            )
        return result

    def stated(self, source: str = "", changed: bool = False) -> Stated:
        """Return what a site states about the app when it enrols; `source` is the digest of its source."""
        task = OWN if self.evaluate is not None else self.task
        return Stated(task=task, classes=self.classes or 0, source=source, changed=changed)

    def load(self, path: Path, split: str) -> AnyExamples:
        """Load a site's data for a split and check that a model can be trained on them.

        The splits are "train", "test" and "all". An app's own loader knows only the first two.
        """
        origin = Origin(self.ref, path, split)
        if split == ALL and self.data is not None:
            training = self.load(path, "train")
            test = own_test_rows(self, path, training)
            if test is None:
                return training
            if isinstance(training, Examples) and isinstance(test, Examples):
                return joined(training, test)
            return joined_lazily(training, test, origin)
        try:
            data = self._read(path, split)
        except HansaError:
            raise
        except Exception as error:
            raise InvalidData(f"{path}: the app's data loader failed: {one_line(error)}") from error
        if not isinstance(data, Examples):
            return check_dataset(self, data, origin)
        if self.collate or self.augment or self.workers:
            raise InvalidData(
                f"{path}: data= returned arrays (Examples), which are not read one by one: collate=, augment="
                " and workers= need a Dataset; for arrays there is transform="
            )
        return check_examples(self, data, path)

    def _read(self, path: Path, split: str) -> Any:
        if self.data is not None:
            return self.data(path, split)
        data = read_site(self, path, split)
        if split == "test" and not data.tested:
            log.warning("%s has no test rows of its own: all its rows are used as test data", path)
        return data.examples


def _is_network(model: object) -> bool:
    """Whether it is a PyTorch network, which is callable, too, and not a class or function that makes one."""
    return hasattr(model, "state_dict") and not isinstance(model, type)


def load_app(ref: str) -> App:
    """Resolve `path/to/app.py:attribute` or `package.module:attribute`."""
    place, _, attribute = ref.rpartition(":")
    if not place or not attribute:
        raise InvalidApp(
            f"{ref!r} is not an app reference: write path/to/app.py:attribute or package.module:attribute"
        )
    try:
        module = _module_at(Path(place)) if place.endswith(".py") else _module_named(place)
    except HansaError as error:  # an App with invalid arguments does not know its own reference
        message = str(error)
        raise InvalidApp(message if message.startswith(place) else f"{ref}: {message}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InvalidApp(f"{ref}: importing it failed: {one_line(error)}") from error
    app = getattr(module, attribute, None)
    if app is None:
        raise InvalidApp(f"{ref}: {place} has no attribute {attribute!r}")
    if not isinstance(app, App):
        raise InvalidApp(f"{ref}: {attribute} is of type {type(app).__name__}; it must be a hansa.App")
    object.__setattr__(app, "ref", ref)  # reader processes load it by that again
    return app


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
