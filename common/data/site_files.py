"""The sites' own files (`data.files` of a job): found, read as a site reads them, and compared."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from hansa.common.data.examples import Examples, Schema, check_examples
from hansa.common.data.lazy import AnyExamples, LazyExamples, same_examples
from hansa.common.data.own import read_site
from hansa.common.values.errors import HansaError, InvalidData, InvalidInput
from hansa.common.values.wording.words import in_order

# What an evaluator evaluates on: test rows, the validation part of the training rows, or every row.
Split = Literal["test", "validation", "all"]


def loaded_split(split: str) -> str:
    """Return the split that an evaluator loads: validation data are a part of the training data."""
    return "train" if split == "validation" else split


def found_files(files: Mapping[str, str], beside: Path) -> dict[str, Path]:
    """Return the files of sites, ordered by name; relative paths start at the job file's folder."""
    paths = {site: beside / Path(files[site]).expanduser() for site in sorted(files, key=in_order)}
    missing = [f"{site} ({path})" for site, path in paths.items() if not path.exists()]
    if missing:
        raise InvalidInput(f"data.files: no such file or folder: {', '.join(missing)}")
    return {site: path.absolute() for site, path in paths.items()}


class Loading(Schema, Protocol):
    """An app that loads its own data, or leaves that to Hansa."""

    @property
    def data(self) -> Callable[[Path, str], Any] | None:
        """The app's own loader."""

    def load(self, path: Path, split: str) -> AnyExamples:
        """Load a site's data for a split and check that a model can be trained on them."""


class _Site(NamedTuple):
    """What one site has."""

    examples: AnyExamples
    columns: tuple[str, ...] = ()
    tested: bool = False  # it has test rows of its own


def agreed(app: Loading, files: Mapping[str, Path]) -> Split:
    """Read every site's data as its daemons will, and refuse sites that could not train one model together.

    Return the split that evaluators can use: test rows if every site has some, otherwise validation data.
    """
    splits: set[Split] = set()
    first: tuple[str, _Site] | None = None
    for site, path in files.items():
        try:
            data = _read(app, path)
        except HansaError as error:
            raise InvalidData(f"data.files.{site}: {error}") from error
        if not len(data.examples):
            raise InvalidData(
                f"data.files.{site}: {path}: it has no examples; leave the site out, or give it some"
            )
        splits.add("test" if data.tested else "validation")
        if first is None:
            first = site, data
        else:
            _compare(site, path, data, *first)
    return "test" if splits == {"test"} else "validation"


def _read(app: Loading, path: Path) -> _Site:
    if app.data is None:
        data = read_site(app, path, "train")
        return _Site(check_examples(app, data.examples, path), data.columns, data.tested)
    training = app.load(path, "train")
    return _Site(training, tested=own_test_rows(app, path, training) is not None)


def own_test_rows(app: Loading, path: Path, training: AnyExamples) -> AnyExamples | None:
    """Return the test rows of an app's own loader; None if it has none, or ignores the split."""
    try:
        test = app.load(path, "test")
    except HansaError:
        return None
    return test if len(test) and not _same(training, test) else None


def _same(one: AnyExamples, other: AnyExamples) -> bool:
    if isinstance(one, Examples) and isinstance(other, Examples):
        return np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
    return isinstance(one, LazyExamples) and isinstance(other, LazyExamples) and same_examples(one, other)


def _compare(site: str, path: Path, data: _Site, other: str, known: _Site) -> None:
    """Refuse a site whose features differ from another's; only named features can be compared by name."""
    if data.columns and known.columns and data.columns != known.columns:
        missing = [name for name in known.columns if name not in data.columns]
        more = [name for name in data.columns if name not in known.columns]
        differences = [f"it lacks {', '.join(missing[:5])}"] if missing else []
        differences += [f"it also has {', '.join(more[:5])}"] if more else []
        raise InvalidData(
            f"data.files.{site}: {path}: its features differ from those of {other}:"
            f" {' and '.join(differences) or 'they are in another order'}; give all sites the same columns"
            " of numbers, or name the columns to use in the app, App(…, columns=(…))"
        )
    if not isinstance(data.examples, Examples) or not isinstance(known.examples, Examples):
        return  # the rehearsal of each site shows whether its Dataset fits the app
    mine, theirs = data.examples.x.shape[1:], known.examples.x.shape[1:]
    if mine != theirs:
        raise InvalidData(
            f"data.files.{site}: {path}: an example has the shape {list(mine)}, but at {other} it has"
            f" {list(theirs)}; one model cannot take both"
        )
