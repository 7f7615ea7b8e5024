"""Data sets by name. Digits ships with Hansa; a path to an .npz file works, too."""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from hansa.common.app import Examples, load_npz
from hansa.common.errors import InvalidInput
from hansa.common.words import suggestion

TEST_SHARE = 0.2  # where a set has no test part of its own


@dataclass(frozen=True)
class DataSet:
    """A data set with its test part."""

    train: Examples
    test: Examples


def load_source(name: str, seed: int) -> DataSet:
    """Load a data set by its name or from an .npz file with x, y and perhaps x_test, y_test."""
    if name == "digits":
        with as_file(files("hansa.common.data") / "digits.npz") as path:
            held = load_npz(path, "train")
        scaled = (held.x.reshape(len(held.x), -1) / np.float32(16)).astype(np.float32)
        return _with_test(Examples(scaled, held.y.astype(np.int64)), seed)
    if name.endswith(".npz"):
        path = Path(name).expanduser()
        if not path.is_file():
            raise InvalidInput(f"data.source: {path}: no such file")
        train = load_npz(path, "train")
        with np.load(path, allow_pickle=False) as arrays:
            tested = "x_test" in arrays and "y_test" in arrays
        return DataSet(train, load_npz(path, "test")) if tested else _with_test(train, seed)
    raise InvalidInput(
        f"data.source: there is no data set {name!r}{suggestion(name, ['digits'])}, or give an .npz file"
    )


def _with_test(held: Examples, seed: int) -> DataSet:
    order = np.random.default_rng([seed, 1]).permutation(len(held))
    cut = round(TEST_SHARE * len(held))
    return DataSet(held.take(np.sort(order[cut:])), held.take(np.sort(order[:cut])))
