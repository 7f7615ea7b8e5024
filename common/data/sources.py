"""Data sets by name, and the user's own files. Digits ships with Hansa; others are expected in a folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples, load_npz
from hansa.common.data.own import ENDINGS, FORMS, ending, read_own
from hansa.common.data.readers import cifar, covertype, heart, idx, shakespeare
from hansa.common.values.errors import InvalidInput, NotFound
from hansa.common.values.wording.words import suggestion

ROOT = "HANSA_DATA"


@dataclass(frozen=True)
class Form:
    """One form in which a set is published: its files, and the function that reads them."""

    files: tuple[str, ...]
    read: Callable[[dict[str, Path]], DataSet]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A known data set."""

    name: str
    summary: str
    published: str
    keys: str
    forms: tuple[Form, ...]
    folder: str = ""  # if it is not the set's name

    def place(self, root: Path) -> Path:
        """Return the folder in which the set's files are expected."""
        return root / (self.folder or self.name)

    def find(self, root: Path) -> tuple[Form, dict[str, Path]] | None:
        """Return the first form whose files all exist, and its files."""
        for form in self.forms:
            paths = {name: _file(self.place(root), name) for name in (*form.files, *form.optional)}
            if all(paths[name] for name in form.files):
                return form, {name: path for name, path in paths.items() if path}
        return None


IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
UCI = "https://archive.ics.uci.edu/dataset"
SOURCES = {
    source.name: source
    for source in (
        Source("digits", "handwritten digits, 8×8, ships with Hansa", f"{UCI}/80", "", ()),
        Source(
            "mnist",
            "handwritten digits, 28×28, 60,000 + 10,000",
            "http://yann.lecun.com/exdb/mnist (writers: https://github.com/facebookresearch/qmnist)",
            "writer",
            (Form(IDX, idx.read_mnist, ("writers.npz",)),),
        ),
        Source(
            "fashion-mnist",
            "pictures of clothes, 28×28, 60,000 + 10,000",
            "https://github.com/zalandoresearch/fashion-mnist",
            "",
            (Form(IDX, idx.read_fashion),),
        ),
        Source(
            "cifar10",
            "colour pictures of 10 things, 32×32, 50,000 + 10,000",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "",
            (
                Form(tuple(f"cifar-10-batches-py/{name}" for name in BATCHES), cifar.read_python),
                Form(tuple(f"cifar-10-batches-bin/{name}.bin" for name in BATCHES), cifar.read_binary),
                Form(("cifar10_train.npz", "cifar10_test.npz"), cifar.read_npz),
            ),
        ),
        Source(
            "covertype",
            "forest cover types, 54 columns, 581,012 rows",
            f"{UCI}/31/covertype",
            "wilderness, soil",
            (Form(("covertype.npz",), covertype.read_npz), Form(("covtype.data",), covertype.read_text)),
        ),
        Source(
            "covertype-binary",
            "its two large classes, 49 columns, 495,141 rows",
            f"{UCI}/31/covertype",
            "wilderness, soil",
            (
                Form(("covertype.npz",), covertype.two_classes(covertype.read_npz)),
                Form(("covtype.data",), covertype.two_classes(covertype.read_text)),
            ),
            folder="covertype",
        ),
        Source(
            "shakespeare",
            "next character in the speeches of 1,399 roles",
            "https://www.ibiblio.org/xml/examples/shakespeare (the form of the file: docs/data.md)",
            "role, play",
            (Form(("shakespeare.json",), shakespeare.read_roles),),
        ),
        Source(
            "heart-disease",
            "740 patients of four hospitals, 15 columns",
            f"{UCI}/45/heart+disease",
            "hospital",
            (Form(tuple(f"processed.{hospital}.data" for hospital in heart.HOSPITALS), heart.read_heart),),
        ),
    )
}


def data_root(given: Path | None) -> Path | None:
    """Return the folder of data sets: the given one, or that of HANSA_DATA."""
    root = given or (Path(os.environ[ROOT]) if os.environ.get(ROOT) else None)
    return root.expanduser() if root else None


def read_source(name: str, root: Path | None = None, label: str | None = None) -> DataSet:
    """Read a data set by its name, or from an .npz, .csv or .parquet file, or a folder of images."""
    path = Path(name).expanduser()
    if label is not None and (name in SOURCES or path.is_dir() or ending(path) == ".npz"):
        raise InvalidInput(
            f"data.label: {name} has its own labels; only tables (.csv, .parquet) take a column"
        )
    if name == "digits":
        return _digits()
    if name in SOURCES:
        return _published(SOURCES[name], data_root(root))
    if path.is_dir() or ending(path) in ENDINGS:
        if not path.exists():
            raise InvalidInput(f"data.source: {path}: no such file")
        return read_own(path, label)
    raise InvalidInput(
        f"data.source: there is no data set {name!r}{suggestion(name, list(SOURCES))}, or give {FORMS}"
    )


@dataclass(frozen=True)
class Split:
    """A data set's examples for training and for testing."""

    train: Examples
    test: Examples


def load_source(name: str, seed: int, test: float | None = None, root: Path | None = None) -> Split:
    """Load a data set and hold out its test part, as a partition with the same seed does."""
    data = read_source(name, root)
    training, testing = data.held_out(seed, test)
    return Split(data.examples.take(training), data.examples.take(testing))


def _digits() -> DataSet:
    with as_file(files("hansa.common.data") / "digits.npz") as path:
        digits = load_npz(path, "train")
    scaled = (digits.x.reshape(len(digits.x), -1) / np.float32(16)).astype(np.float32)
    return DataSet(Examples(scaled, digits.y.astype(np.int64)), classes=idx.DIGITS)


def _published(source: Source, root: Path | None) -> DataSet:
    if root is None:
        raise NotFound(
            f"{source.name}: where are the data sets? Set {ROOT} to the folder that has"
            f" {source.place(Path())}/{source.forms[0].files[0]}; published at {source.published}"
        )
    files = source.find(root)
    if files is None:
        forms = " or ".join(_listed(form) for form in source.forms)
        raise NotFound(
            f"{source.name}: no data in {source.place(root)}; expected there: {forms} (plain or .gz);"
            f" published at {source.published}"
        )
    form, paths = files
    return form.read(paths)


def _listed(form: Form) -> str:
    return (
        form.files[0]
        if len(form.files) == 1
        else f"{form.files[0]} … {form.files[-1]} ({len(form.files)} files)"
    )


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
