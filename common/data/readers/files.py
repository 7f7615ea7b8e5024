"""Opens files that may be compressed, and describes what is wrong with a file."""

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from hansa.common.values.errors import InvalidData, one_line
from hansa.common.values.wording.words import counted


@contextmanager
def damaged(path: Path, what: str) -> Iterator[None]:
    """Turn a reader's error into a message that names the file."""
    try:
        yield
    except InvalidData:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        EOFError,
        ImportError,
        NotImplementedError,
        RecursionError,
        SyntaxError,
        csv.Error,
        zlib.error,
        BadZipFile,
    ) as error:
        raise InvalidData(f"{path}: not {what}: {one_line(error)}") from None


def read_bytes(path: Path) -> bytes:
    """Read a file, plain or gzip."""
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return file.read()
    return path.read_bytes()


def labelled(path: Path, x: np.ndarray, y: np.ndarray, classes: int) -> None:
    """Refuse examples that do not have one label each, or a label without a class."""
    if y.shape != (len(x),):
        raise InvalidData(f"{path}: {list(x.shape)} images do not fit {list(y.shape)} labels")
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if wrong.size:
        raise InvalidData(f"{path}: label {y[wrong[0]]} of row {wrong[0]} is outside 0 … {classes - 1}")


def finite(path: Path, x: np.ndarray, columns: tuple[str, ...] = ()) -> np.ndarray:
    """Refuse features that are NaN or infinite."""
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        flat = ~np.isfinite(x.reshape(len(x), -1))
        row, column = (int(at[0]) for at in np.nonzero(flat))
        name = f"column {columns[column]!r}" if columns else f"feature {column}"
        rows = counted(int(flat.any(axis=1).sum()), "row")
        raise InvalidData(
            f"{path}: NaN or infinite values in {rows}, first in row {row}, {name};"
            " fill them in, or remove such rows"
        )
    return x
