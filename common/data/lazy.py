"""Examples that stay where they are: a map-style Dataset of which only what a batch needs is read.

A Dataset of torch, or any other object with a length and numbered items, is never copied: hold-out, windows
and standardisation work on row numbers. Readers of random examples say with which seed, so that random
transforms give the same numbers in every process.
"""

import operator
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hansa.common.data.examples import Examples, Schema, check_labels
from hansa.common.values.errors import HansaError, InvalidData, Refused, one_line
from hansa.common.values.settings.training import Standard

TARGETS = "targets"  # the attribute of a Dataset with the label of every example, as torchvision has it


class MapStyle(Protocol):
    """A map-style Dataset."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, row: int, /) -> Any:
        """Return an example."""


@dataclass(frozen=True)
class Origin:
    """Where a Dataset comes from: another process can open it again, which needs no pickling."""

    app: str  # the app's reference; "" if it was not loaded by one
    path: Path
    split: str

    def __str__(self) -> str:
        return f"{self.path}: app {self.app}" if self.app else str(self.path)


@dataclass(frozen=True, eq=False)
class LazyExamples:
    """Some rows of a Dataset, which are read one by one. It is a map-style Dataset itself."""

    dataset: MapStyle
    rows: np.ndarray
    length: int  # of the whole Dataset when it was loaded
    origin: Origin
    classified: bool  # each example has one of the app's classes
    targets: np.ndarray | None = None  # labels of all rows of the Dataset, if it knows them
    standard: Standard | None = None  # how features are standardised: always by given moments

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return read_rows(self.take(np.array([operator.index(row)])))[0]

    def take(self, indices: np.ndarray) -> "LazyExamples":
        """Return the rows at `indices`; nothing is read."""
        return replace(self, rows=self.rows[indices])

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of these rows, without reading examples; None if the Dataset does not have them."""
        return None if self.targets is None else self.targets[self.rows]

    def require_same_length(self) -> None:
        """Refuse a Dataset that has grown or shrunk: row numbers would mean other examples."""
        length = _length(self.dataset, self.origin)
        if length != self.length:
            raise InvalidData(
                f"{self.origin}: the Dataset had {self.length} examples when it was loaded, and has {length}"
                " now; the length of a Dataset must not change, so fix its length when it is made, and"
                " restart the daemon when the data have changed"
            )


AnyExamples = Examples | LazyExamples


def check_dataset(app: Schema, dataset: Any, origin: Origin) -> LazyExamples:
    """Refuse a Dataset without length or numbered examples, or with wrong labels; no example is read."""
    if dataset is None or isinstance(dataset, tuple | Mapping | str | np.ndarray):
        raise InvalidData(
            f"{origin}: data= returned a {type(dataset).__name__}; return Examples(x=…, y=…), or a map-style"
            " Dataset such as those of torch"
        )
    iterable = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)  # without torch
    if iterable or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InvalidData(
            f"{origin}: data= returned {type(dataset).__name__}, which has no length or no numbered examples;"
            " hold-out and batches need row numbers, so return a map-style Dataset (with __len__ and"
            " __getitem__), not an iterable one"
        )
    length = _length(dataset, origin)
    classified = app.task == "classification"
    return LazyExamples(
        dataset, np.arange(length), length, origin, classified, _targets(app, dataset, length, origin)
    )


def _length(dataset: MapStyle, origin: Origin) -> int:
    try:
        return operator.index(len(dataset))
    except Exception as error:
        raise InvalidData(f"{origin}: the Dataset cannot say its length: {one_line(error)}") from error


def _targets(app: Schema, dataset: MapStyle, length: int, origin: Origin) -> np.ndarray | None:
    """Return the labels that a Dataset knows, checked; None if it does not have one for each example."""
    given = getattr(dataset, TARGETS, None)
    if given is None:
        return None
    try:
        targets = np.asarray(given)
    except Exception as error:
        raise InvalidData(
            f"{origin}: the Dataset's targets are not an array of labels: {one_line(error)}"
        ) from error
    if targets.ndim == 0 or len(targets) != length:
        has = len(targets) if targets.ndim else "no"
        raise InvalidData(f"{origin}: the Dataset has {length} examples, but {has} targets; each needs one")
    if app.task == "classification":
        check_labels(app, targets, origin)
    return targets


def read_rows(examples: LazyExamples) -> list[Any]:
    """Read all these rows; an error of the Dataset's code names the first one that fails."""
    dataset, number = examples.dataset, -1
    try:
        several = getattr(dataset, "__getitems__", None)  # of Datasets that read rows faster together
        if several is not None:
            read = list(several(examples.rows.tolist()))
        else:
            read = []
            for number in examples.rows.tolist():
                read.append(dataset[number])
    except HansaError:
        raise
    except Exception as error:
        where = f"example {number} of {examples.length}" if number >= 0 else f"{len(examples)} examples"
        raise Refused(  # not for good: another attempt may succeed, such as when a disk is back
            f"{examples.origin}: the Dataset failed at {where}: {one_line(error)}; repair the data or leave"
            " them out of the Dataset; the traceback is in the site's log"
        ) from error
    if examples.standard is None:
        return read
    return [standardised_example(example, examples.standard, examples.origin) for example in read]


def standardised_example(example: Any, standard: Standard, origin: Origin) -> Any:
    """Return an example with standardised features, computed in float64 as those in memory are."""
    features, *rest = _features_first(example, origin)
    array = np.asarray(features)
    width = len(standard.mean)
    flat = array.reshape(-1).astype(np.float32)
    if len(flat) < width:
        raise InvalidData(
            f"{origin}: survey.columns: {width} columns are to be standardised, but an example has"
            f" {len(flat)} numbers"
        )
    moments = np.array(standard.mean), np.array(standard.deviation)
    flat[:width] = (array.reshape(-1)[:width] - moments[0]) / moments[1]
    result: Any = flat.reshape(array.shape)
    if type(features).__module__.partition(".")[0] == "torch":
        result = sys.modules["torch"].from_numpy(result)  # loaded already; controllers do without it
    return (result, *rest)


def _features_first(example: Any, origin: Origin) -> tuple[Any, ...]:
    """Return an example that is a pair of features and target."""
    if not isinstance(example, tuple | list) or len(example) != 2:
        raise InvalidData(
            f"{origin}: survey.standardise needs examples that are pairs of features and target, and the"
            f" Dataset returns a {type(example).__name__}; standardise in the Dataset itself"
        )
    return tuple(example)


def tables(examples: LazyExamples, numbers: int) -> Iterator[np.ndarray]:
    """Yield the features of the rows in tables of at most so many numbers (or one row)."""
    held: list[np.ndarray] = []
    for row in range(len(examples)):
        features = np.asarray(_features_first(examples[row], examples.origin)[0])
        if held and features.size != held[0].size:
            raise InvalidData(
                f"{examples.origin}: example {examples.rows[row]} has {features.size} numbers, others have"
                f" {held[0].size}; features of different sizes cannot be standardised"
            )
        held.append(features.reshape(-1))
        if len(held) * max(features.size, 1) >= numbers:
            yield np.stack(held)
            held = []
    if held:
        yield np.stack(held)


@dataclass(frozen=True)
class _Joined:
    """Two Datasets, one after the other."""

    one: LazyExamples
    other: LazyExamples

    def __len__(self) -> int:
        return len(self.one) + len(self.other)

    def __getitem__(self, row: int) -> Any:
        return self.one[row] if row < len(self.one) else self.other[row - len(self.one)]


def joined_lazily(one: AnyExamples, other: AnyExamples, origin: Origin) -> LazyExamples:
    """Return the rows of both; nothing is read."""
    if not isinstance(one, LazyExamples) or not isinstance(other, LazyExamples):
        raise InvalidData(f"{origin}: data= must return a Dataset for both splits, or Examples for both")
    labels, more = one.labels, other.labels
    targets = None if labels is None or more is None else np.concatenate([labels, more])
    length = len(one) + len(other)
    return LazyExamples(_Joined(one, other), np.arange(length), length, origin, one.classified, targets)


def same_examples(one: LazyExamples, other: LazyExamples) -> bool:
    """Whether two Datasets are probably the same: equal in number, in labels, and in their first example."""
    if len(one) != len(other):
        return False
    labels, others = one.targets, other.targets
    if labels is not None and others is not None and not np.array_equal(labels, others):
        return False
    return not len(one) or _equal(one[0], other[0])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))
