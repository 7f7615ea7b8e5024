"""MNIST and Fashion-MNIST: idx files, plain or gzip; for MNIST also the writers, from QMNIST."""

from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples
from hansa.common.data.partition.table import Key
from hansa.common.data.readers.files import damaged, labelled, read_bytes
from hansa.common.values.errors import InvalidData

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read_idx(path: Path) -> np.ndarray:
    """Read one idx file of bytes."""
    with damaged(path, "an idx file"):
        content = read_bytes(path)
        if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 4:
            raise InvalidData(f"{path}: not an idx file of bytes")
        shape = np.frombuffer(content, ">u4", content[3], 4).astype(int).tolist()
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def read_mnist(files: dict[str, Path], classes: tuple[str, ...] = DIGITS) -> DataSet:
    """Read the four files of MNIST or of a set like it; images are 1 × 28 × 28 bytes."""
    x, y, tested = [], [], 0
    for part in ("train", "t10k"):
        images = read_idx(files[f"{part}-images-idx3-ubyte"])
        labels = read_idx(files[f"{part}-labels-idx1-ubyte"])
        if images.ndim != 3:
            raise InvalidData(
                f"{files[f'{part}-images-idx3-ubyte']}: shape {list(images.shape)} is not that of images"
            )
        labelled(files[f"{part}-labels-idx1-ubyte"], images, labels, len(classes))
        x.append(images[:, None])
        y.append(labels.astype(np.int64))
        tested = len(images)
    keys = {}
    if "writers.npz" in files:
        keys["writer"] = _writers(files["writers.npz"], len(y[0]), len(y[1]))
    return DataSet(Examples(np.concatenate(x), np.concatenate(y)), tested, keys, classes=classes)


def read_fashion(files: dict[str, Path]) -> DataSet:
    """Read Fashion-MNIST."""
    return read_mnist(files, CLOTHES)


def _writers(path: Path, train: int, test: int) -> Key:
    with (
        damaged(path, "an .npz file with train_writer and test_writer"),
        np.load(path, allow_pickle=False) as content,
    ):
        writers = np.concatenate([content["train_writer"], content["test_writer"]])
    if len(writers) != train + test:
        raise InvalidData(f"{path}: {len(writers)} writers do not fit {train + test} images")
    return Key.of(writers)
