"""The user's own tables: .npz, .csv and .parquet."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples, load_npz
from hansa.common.data.partition.table import Key
from hansa.common.data.readers.files import damaged, finite, read_bytes
from hansa.common.values.errors import InvalidData, InvalidInput
from hansa.common.values.wording.words import counted, suggestion

LABELS = ("y", "label", "target", "class")
# A column of whole numbers with more different values than this is a measurement, not a key.
CATEGORIES = 1000
MISSING = {"", "?", "na", "nan", "n/a", "null"}


def read_npz(path: Path) -> DataSet:
    """Read x and y, perhaps x_test and y_test; other arrays with one value for each row of x are keys."""
    train = load_npz(path, "train")
    with damaged(path, "a readable .npz file"), np.load(path, allow_pickle=False) as held:
        others = {name: held[name] for name in held.files if name not in ("x", "y", "x_test", "y_test")}
        tested = "x_test" in held and "y_test" in held
    if train.x.ndim == 0 or train.y.ndim == 0 or len(train.x) != len(train.y):
        raise InvalidData(
            f"{path}: x has shape {list(train.x.shape)} and y {list(train.y.shape)}:"
            " they need one row per example"
        )
    if train.x.dtype.kind not in "fiub":
        raise InvalidData(f"{path}: x holds {train.x.dtype.name}; numbers are needed")
    keys = {name: values for name, values in others.items() if values.shape == (len(train),)}
    x, y, count = train.x, train.y, 0
    if tested:
        test = load_npz(path, "test")
        count = len(test)
        with damaged(path, "a file whose test rows are like its others"):
            x, y = np.concatenate([x, test.x]), np.concatenate([y, test.y])
        keys = {}  # the test rows have none
    y, classes = labels(path, y, "y")
    named = {name: Key.of(values) for name, values in keys.items()}
    return DataSet(Examples(finite(path, x), y), count, named, classes=classes)


def labels(path: Path, y: np.ndarray, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels as numbers and, if they are words, the classes that they name."""
    if y.dtype.kind in "US" and y.ndim == 1:
        words = Key.of(y)
        return words.codes, words.names
    if y.dtype.kind not in "fiub":
        raise InvalidData(f"{path}: the labels {name!r} are {y.dtype.name}; numbers or words are needed")
    if y.dtype.kind == "f":
        finite(path, y.reshape(len(y), -1), (name,) if y.ndim == 1 else ())
        return y, ()
    return y.astype(np.int64), ()


def read_csv(path: Path, label: str | None) -> DataSet:
    """Read a table with a line of names; columns that are not numbers become keys."""
    with damaged(path, "a CSV file"):
        lines = list(csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"))))
        lines = [line for line in lines if line]
        if len(lines) < 2:
            raise InvalidData(f"{path}: a line of column names and at least one row are needed")
        names, rows = [name.strip() for name in lines[0]], lines[1:]
        _named(path, names)
        for number, line in enumerate(rows):
            if len(line) != len(names):
                raise InvalidData(f"{path}: row {number} has {len(line)} values for {len(names)} columns")
    columns = [np.array([line[at].strip() for line in rows]) for at in range(len(names))]
    return built(
        path,
        names,
        [_numbers(path, name, values) for name, values in zip(names, columns, strict=True)],
        label,
    )


def read_parquet(path: Path, label: str | None) -> DataSet:
    """Read a Parquet table; columns that are not numbers become keys."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InvalidInput(f"{path}: reading Parquet needs pyarrow: pip install 'hansa[data]'") from None
    with damaged(path, "a Parquet file"):
        table = parquet.read_table(path)
        for name in table.column_names:
            if table.column(name).null_count:
                missing = counted(table.column(name).null_count, "missing value")
                raise InvalidData(f"{path}: column {name!r} has {missing}; fill them in, or remove such rows")
        columns = [
            np.asarray(table.column(name).to_numpy(zero_copy_only=False)) for name in table.column_names
        ]
    return built(
        path, table.column_names, [c.astype(str) if c.dtype.kind == "O" else c for c in columns], label
    )


def built(path: Path, names: Sequence[str], columns: Sequence[np.ndarray], label: str | None) -> DataSet:
    """Make a data set of named columns: one is the label, numbers are features, words are keys."""
    if label is not None and label not in names:
        raise InvalidInput(
            f"{path}: there is no column {label!r} for the label{suggestion(label, list(names))}"
        )
    target = label or next((name for name in LABELS if name in names), names[-1])
    values_of = dict(zip(names, columns, strict=True))
    y, classes = labels(path, values_of.pop(target), target)
    features = {name: values for name, values in values_of.items() if values.dtype.kind in "fiub"}
    if not features:
        raise InvalidData(f"{path}: no column of numbers besides the label {target!r}{_one_column(names)}")
    x = np.stack([values.astype(np.float32) for values in features.values()], axis=1)
    keys = {name: values for name, values in values_of.items() if name not in features or _categories(values)}
    return DataSet(
        Examples(finite(path, x, tuple(features)), y),
        0,
        {name: Key.of(values) for name, values in keys.items()},
        tuple(features),
        classes,
    )


def _named(path: Path, names: Sequence[str]) -> None:
    """Refuse a first line that cannot hold the names of columns."""
    for at, name in enumerate(names, start=1):
        if not name:
            raise InvalidData(
                f"{path}: column {at} has no name; name it, or leave it out if it only counts the rows"
            )
        if name in names[: at - 1]:
            raise InvalidData(f"{path}: there are two columns {name!r}")
    if all(re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", name, re.IGNORECASE) for name in names):
        raise InvalidData(f"{path}: the first line holds numbers; it must hold the names of the columns")


def _one_column(names: Sequence[str]) -> str:
    """Return a hint for a table that is not separated by commas."""
    if len(names) > 1 or not re.search(r"[;\t|]", names[0]):
        return ""
    return "; it seems to have a single column: save it with commas between the columns"


def _categories(values: np.ndarray) -> bool:
    return values.dtype.kind in "iub" and len(np.unique(values)) <= CATEGORIES


def _numbers(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """Return a column as whole numbers, as floats or, if it holds words, unchanged."""
    missing = np.isin(np.char.lower(values), list(MISSING))
    try:
        numbers = values[~missing].astype(np.float64)
    except ValueError:
        return values
    if missing.any():
        raise InvalidData(
            f"{path}: column {name!r} has {counted(int(missing.sum()), 'missing value')}, first in row"
            f" {int(np.flatnonzero(missing)[0])}; fill them in, or remove such rows"
        )
    whole = np.char.isdigit(np.char.lstrip(values, "+-")).all()
    return numbers.astype(np.int64) if whole else numbers
