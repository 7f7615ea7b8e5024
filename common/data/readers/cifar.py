"""CIFAR-10 in three forms: python batches, binary batches, a compact .npz. Images are 3 × 32 × 32 bytes."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples
from hansa.common.data.readers.files import damaged, labelled
from hansa.common.values.errors import InvalidData

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32  # a label and an image
Arrays = tuple[np.ndarray, np.ndarray]
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class PlainUnpickler(pickle.Unpickler):
    """Reads a pickle of lists, strings and arrays; refuses one that names anything else."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Look up one of the few names that arrays need."""
        if (module_name, global_name) not in ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which a data file does not need"
            )
        return super().find_class(module_name.replace("numpy.core", "numpy._core"), global_name)


def read_python_batch(path: Path) -> Arrays:
    """Read one batch as published "for Python": a pickled dictionary with `data` and `labels`."""
    try:
        with damaged(path, "a CIFAR-10 batch"):
            content = PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
            images = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32)
            return images, np.asarray(content[b"labels"], np.int64)
    except pickle.UnpicklingError as error:
        raise InvalidData(f"{path}: not a CIFAR-10 batch: {error}") from None


def read_binary_batch(path: Path) -> Arrays:
    """Read one batch as published in binary form: records of a label and an image."""
    with damaged(path, "a CIFAR-10 binary batch"):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        if not content.size or content.size % RECORD:
            raise InvalidData(f"{path}: {content.size} bytes are not a whole number of records of {RECORD}")
        records = content.reshape(-1, RECORD)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def read_compact(path: Path) -> Arrays:
    """Read the compact form: channels G, R-G, B-G, each as differences across and down, modulo 256."""
    with damaged(path, "a compact CIFAR-10 file"), np.load(path, allow_pickle=False) as content:
        green, red, blue = content["r"].cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
        return np.stack([green + red, green, green + blue], axis=1), content["y"].astype(np.int64)


def read_python(files: dict[str, Path]) -> DataSet:
    """Read the six python batches."""
    return _joined(files, read_python_batch)


def read_binary(files: dict[str, Path]) -> DataSet:
    """Read the six binary batches."""
    return _joined(files, read_binary_batch)


def read_npz(files: dict[str, Path]) -> DataSet:
    """Read the two compact files."""
    return _joined(files, read_compact)


def _joined(files: dict[str, Path], read: Callable[[Path], Arrays]) -> DataSet:
    """Join files of which the last is the test part."""
    parts = []
    for path in files.values():
        images, labels = read(path)
        labelled(path, images, labels, len(CLASSES))
        parts.append((images, labels))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return DataSet(Examples(x, y), len(parts[-1][1]), classes=CLASSES)
