"""The user's own data, in a file or a folder: one reader for a site's data and for a set that is split.

A set that is split is read as a whole, so labels that are words can be numbered alphabetically. A site sees
only its own rows, and another site may have other words, so there the app must name the classes
(`class_names`).
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import ALL, Examples, Schema, load_npz
from hansa.common.data.partition.table import Key
from hansa.common.data.readers import images, tables
from hansa.common.values.errors import InvalidData, InvalidInput
from hansa.common.values.wording.words import suggestion

ENDINGS = (".npz", ".csv", ".csv.gz", ".parquet")
FORMS = "an .npz, .csv, .csv.gz or .parquet file, or a folder of images"


def ending(path: Path) -> str:
    """Return a file name's suffix, including the one before .gz."""
    return "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def read_own(path: Path, label: str | None = None) -> DataSet:
    """Read a file or a folder of images as a whole."""
    if path.is_dir():
        return images.read_folder(path)
    if ending(path) not in ENDINGS:
        raise InvalidInput(f"{path}: unknown format; give {FORMS}")
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    if ending(path) == ".npz":
        return tables.read_npz(path)
    return tables.read_parquet(path, label) if ending(path) == ".parquet" else tables.read_csv(path, label)


@dataclass(frozen=True)
class SiteData:
    """A site's examples, and the names of the features if they have names."""

    examples: Examples
    columns: tuple[str, ...] = ()
    tested: bool = False  # it has test rows of its own


def read_site(app: Schema, path: Path, split: str) -> SiteData:
    """Read a site's rows for training, for testing, or all of them, without an app's own loader.

    Without test rows all rows are used for testing: a site may have nothing else.
    """
    if path.is_file() and ending(path) == ".npz":
        examples = load_npz(path, split)  # the other arrays need not be read
        return SiteData(_numbered(app, path, examples), tested=_has_test(path))
    data = read_own(path, app.label)
    if data.classes and not app.class_names and app.task == "classification":
        raise InvalidData(_unnamed(path, data.classes))
    data = fitted(app, path, data)
    rows = np.arange(len(data))
    if data.tested and split != ALL:
        rows = rows[-data.tested :] if split == "test" else rows[: -data.tested]
    return SiteData(data.examples.take(rows), data.columns, bool(data.tested))


def fitted(app: Schema, path: Path, data: DataSet) -> DataSet:
    """Return a set with the features that an app names, and with its words numbered as in the app."""
    x, y = data.examples.x, data.examples.y
    if data.classes and (app.class_names or app.task != "classification"):
        y = _codes(app, path, data.classes)[y]
    if not app.columns or not data.columns:
        return replace(data, examples=Examples(x, y), classes=app.class_names or data.classes)
    chosen = Examples(x[:, _places(app, path, data.columns)], y)
    return replace(data, examples=chosen, columns=app.columns, classes=app.class_names or data.classes)


def _has_test(path: Path) -> bool:
    with np.load(path, allow_pickle=False) as arrays:
        return "x_test" in arrays and "y_test" in arrays


def _numbered(app: Schema, path: Path, examples: Examples) -> Examples:
    """Number labels that are words."""
    if examples.y.dtype.kind not in "US" or examples.y.ndim != 1:
        return examples
    words = Key.of(examples.y)
    if not app.class_names and app.task == "classification":
        raise InvalidData(_unnamed(path, words.names))
    return Examples(examples.x, _codes(app, path, words.names)[words.codes])


def _unnamed(path: Path, words: tuple[str, ...]) -> str:
    return (
        f"{path}: the labels are words ({_some(words)}), and other sites may have others; name all of them"
        f" in the app, such as class_names=({', '.join(map(repr, words[:3]))}),"
        " so that every site numbers them alike"
    )


def _codes(app: Schema, path: Path, words: tuple[str, ...]) -> np.ndarray:
    """Return the numbers of labels that are words, the same at every site."""
    if app.task != "classification":
        raise InvalidData(f"{path}: the labels are words ({_some(words)}); task {app.task!r} needs numbers")
    known = list(app.class_names)
    for word in words:
        if word not in known:
            raise InvalidData(
                f"{path}: the label {word!r} is not among the app's class_names{suggestion(word, known)}"
            )
    return np.array([known.index(word) for word in words], np.int64)


def _places(app: Schema, path: Path, names: tuple[str, ...]) -> list[int]:
    """Return the positions in a table of the features that the app names."""
    for name in app.columns:
        if name not in names:
            raise InvalidData(
                f"{path}: no column of numbers {name!r}, which the app's columns name"
                f" (words are not features); it has {_some(names)}"
            )
    return [names.index(name) for name in app.columns]


def _some(words: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(words[:most]) + (" …" if len(words) > most else "")
