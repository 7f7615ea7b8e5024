"""A site's examples: features and labels, read from a file and checked before they are used."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from zipfile import BadZipFile, is_zipfile

import numpy as np

from hansa.common.values.errors import InvalidData, one_line
from hansa.common.values.stated import TaskKind
from hansa.common.values.wording.words import counted

ALL: Final = "all"  # the split that has every row of a site


class Schema(Protocol):
    """What an app says about its data."""

    @property
    def task(self) -> TaskKind:
        """The kind of task."""

    @property
    def classes(self) -> int | None:
        """The number of classes or labels."""

    @property
    def label(self) -> str | None:
        """The column of a table that is the label."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that are the features, in this order."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels, if they are words."""


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


def joined(one: Examples, other: Examples) -> Examples:
    """Return the rows of both."""
    return Examples(np.concatenate([one.x, other.x]), np.concatenate([one.y, other.y]))


def load_npz(path: Path, split: str) -> Examples:
    """Read x and y; if the file has x_test and y_test, these for the split "test", and both for "all"."""
    try:
        if path.is_file() and not is_zipfile(path):  # numpy's message would be about pickles
            raise InvalidData(
                f"{path}: not a valid .npz file (truncated, or another format?);"
                " `np.savez(path, x=…, y=…)` makes one"
            )
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            tested = split in ("test", ALL) and "x_test" in arrays and "y_test" in arrays
            names = ("x_test", "y_test") if tested and split == "test" else ("x", "y")
            missing = [name for name in names if name not in arrays]
            if missing:
                others = f", only {', '.join(arrays.files)}" if arrays.files else ""
                raise InvalidData(f"{path}: it has no array {missing[0]!r}{others}")
            examples = Examples(arrays[names[0]], arrays[names[1]])
            if tested and split == ALL:
                return joined(examples, Examples(arrays["x_test"], arrays["y_test"]))
            return examples
    except (OSError, ValueError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        if "Object arrays" in str(error):  # to read them, numpy would have to run code from the file
            raise InvalidData(
                f"{path}: x or y is an array of Python objects; save arrays of numbers,"
                " such as x.astype(np.float32)"
            ) from None
        raise InvalidData(f"{path}: not a readable .npz file: {one_line(error)}") from None


def check_examples(app: Schema, examples: Examples, path: Path) -> Examples:
    """Refuse data with rows that do not match, labels out of range, NaN or infinite values."""
    x, y = np.asarray(examples.x), np.asarray(examples.y)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise InvalidData(
            f"{path}: x has shape {list(x.shape)} and y {list(y.shape)}: they need one row per example"
        )
    if x.dtype.kind not in "fiub":
        raise InvalidData(f"{path}: x holds {x.dtype.name}; numbers are needed")
    if app.task == "classification":
        check_labels(app, y, path)
    elif app.task == "multilabel":
        if y.dtype.kind not in "iub":
            raise InvalidData(f"{path}: labels must be integers or booleans, these are {y.dtype.name}")
        if y.shape[1:] != (app.classes,):
            raise InvalidData(
                f"{path}: y has shape {list(y.shape)}: it needs {counted(app.classes or 0, 'column')}"
                " of 0 and 1"
            )
        _refuse_labels_over(1, y, path)
    elif y.dtype.kind not in "fiub":
        raise InvalidData(f"{path}: y holds {y.dtype.name}; numbers are needed")
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            rows = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
            raise InvalidData(
                f"{path}: {name} holds NaN or infinite values in {counted(rows.size, 'row')},"
                f" first in row {rows[0]}"
            )
    return Examples(x, y)


def check_labels(app: Schema, y: np.ndarray, place: object) -> None:
    """Refuse labels that are not numbers of the app's classes; `place` says in the message where they are."""
    if y.dtype.kind not in "iu":
        raise InvalidData(f"{place}: labels must be integers, these are {y.dtype.name}")
    _refuse_labels_over((app.classes or 0) - 1, y, place)


def _refuse_labels_over(most: int, y: np.ndarray, path: object) -> None:
    wrong = np.flatnonzero((y < 0) | (y > most))
    if wrong.size:
        at = np.unravel_index(wrong[0], y.shape)
        raise InvalidData(
            f"{path}: label {y[at]} at row {at[0]} is outside 0 … {most}"
            f" ({counted(wrong.size, 'such label')})"
        )
