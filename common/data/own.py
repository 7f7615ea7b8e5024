"""Data of one's own, in a file or a folder: one reader for a site's data and for a set that is to be split.

A set that is split is seen as a whole, so words that are labels can be numbered by the alphabet as they are
found. A site sees only its own rows, and another may have other words: there the app names the classes
(`class_names`).
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples, Schema, load_npz
from hansa.common.data.partition.table import Key
from hansa.common.data.readers import images, tables
from hansa.common.values.errors import InvalidData, InvalidInput
from hansa.common.values.words import suggestion

ENDINGS = (".npz", ".csv", ".csv.gz", ".parquet")
FORMS = "an .npz, .csv, .csv.gz or .parquet file, or a folder of images"


def ending(path: Path) -> str:
    """Return how a file's name ends, with what comes before .gz."""
    return "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def read_own(path: Path, label: str | None = None) -> DataSet:
    """Read a file or a folder of images as a whole."""
    if path.is_dir():
        return images.read_folder(path)
    if ending(path) not in ENDINGS:
        raise InvalidInput(f"{path}: its name does not say what it is: {FORMS} can be read")
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    if ending(path) == ".npz":
        return tables.read_npz(path)
    return tables.read_parquet(path, label) if ending(path) == ".parquet" else tables.read_csv(path, label)


@dataclass(frozen=True)
class SiteData:
    """What a site holds, with the names of the features where they have names."""

    examples: Examples
    columns: tuple[str, ...] = ()
    tested: bool = False  # it has test rows of its own


def read_site(app: Schema, path: Path, split: str) -> SiteData:
    """Read a site's rows for training or for testing, without an app's own loader.

    Where there are no test rows, all rows are taken as such: a site may hold nothing else.
    """
    if path.is_file() and ending(path) == ".npz":
        held = load_npz(path, split)  # as it is: another part of it need not be read
        return SiteData(_numbered(app, path, held), tested=_has_test(path))
    data = read_own(path, app.label)
    if data.classes and not app.class_names and app.task == "classification":
        raise InvalidData(_unnamed(path, data.classes))
    data = fitted(app, path, data)
    rows = np.arange(len(data))
    if data.tested:
        rows = rows[-data.tested :] if split == "test" else rows[: -data.tested]
    return SiteData(data.examples.take(rows), data.columns, bool(data.tested))


def fitted(app: Schema, path: Path, data: DataSet) -> DataSet:
    """Return a set with the features that an app names, and its words for labels numbered as the app does."""
    x, y = data.examples.x, data.examples.y
    if data.classes and (app.class_names or app.task != "classification"):
        y = _codes(app, path, data.classes)[y]
    if not app.columns or not data.columns:
        return replace(data, examples=Examples(x, y), classes=app.class_names or data.classes)
    chosen = Examples(x[:, _places(app, path, data.columns)], y)
    return replace(data, examples=chosen, columns=app.columns, classes=app.class_names or data.classes)


def _has_test(path: Path) -> bool:
    with np.load(path, allow_pickle=False) as held:
        return "x_test" in held and "y_test" in held


def _numbered(app: Schema, path: Path, held: Examples) -> Examples:
    """Number labels that are words."""
    if held.y.dtype.kind not in "US" or held.y.ndim != 1:
        return held
    found = Key.of(held.y)
    if not app.class_names and app.task == "classification":
        raise InvalidData(_unnamed(path, found.names))
    return Examples(held.x, _codes(app, path, found.names)[found.codes])


def _unnamed(path: Path, words: tuple[str, ...]) -> str:
    return (
        f"{path}: the labels are words ({_some(words)}), and other sites may have others; name all of them in the app,"
        f" such as class_names=({', '.join(map(repr, words[:3]))}), so that every site numbers them alike"
    )


def _codes(app: Schema, path: Path, words: tuple[str, ...]) -> np.ndarray:
    """Return the numbers of words that are labels, the same at every site."""
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
    """Return where the features that the app names stand in a table."""
    for name in app.columns:
        if name not in names:
            raise InvalidData(
                f"{path}: no column of numbers {name!r}, which the app's columns name (words are not features);"
                f" it has {_some(names)}"
            )
    return [names.index(name) for name in app.columns]


def _some(words: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(words[:most]) + (" …" if len(words) > most else "")
