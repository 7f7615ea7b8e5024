"""Ready files of sites (`data.files` of a job): found beside the job file, read as a site reads them, and compared."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from hansa.common.data.examples import Examples, Schema, check_examples
from hansa.common.data.own import SiteData, read_site
from hansa.common.values.errors import HansaError, InvalidData, InvalidInput
from hansa.common.values.words import in_order

Split = Literal["test", "validation"]


def found_files(files: Mapping[str, str], beside: Path) -> dict[str, Path]:
    """Return the files of sites in the order of their names; relative paths are meant from the job file's folder."""
    paths = {site: beside / Path(files[site]).expanduser() for site in sorted(files, key=in_order)}
    missing = [f"{site} ({path})" for site, path in paths.items() if not path.exists()]
    if missing:
        raise InvalidInput(f"data.files: no such file or folder: {', '.join(missing)}")
    return {site: path.absolute() for site, path in paths.items()}


class Loading(Schema, Protocol):
    """An app that loads its own data, or leaves it to Hansa."""

    @property
    def data(self) -> Callable[[Path, str], Examples] | None:
        """The app's own loader."""

    def load(self, path: Path, split: str) -> Examples:
        """Load a site's data for a split and check that it can be learned from."""


def agreed(app: Loading, files: Mapping[str, Path]) -> Split:
    """Read every site's data as its daemons will, and refuse sites that could not train one model together.

    Return what the evaluators can measure on: test rows if every site has some, else validation splits.
    """
    splits: set[Split] = set()
    first: tuple[str, SiteData] | None = None
    for site, path in files.items():
        try:
            data = _read(app, path)
        except HansaError as error:
            raise InvalidData(f"data.files.{site}: {error}") from error
        if not len(data.examples):
            raise InvalidData(
                f"data.files.{site}: {path}: no examples in it; leave the site out, or give it some"
            )
        splits.add("test" if data.tested else "validation")
        if first is None:
            first = site, data
        else:
            _compare(site, path, data, *first)
    return "test" if splits == {"test"} else "validation"


def _read(app: Loading, path: Path) -> SiteData:
    if app.data is None:
        data = read_site(app, path, "train")
        return SiteData(check_examples(app, data.examples, path), data.columns, data.tested)
    training = app.load(path, "train")
    try:
        test: Examples | None = app.load(path, "test")
    except HansaError:
        test = None  # its loader knows of no test rows
    # A loader may pay no heed to the split.
    other = test is not None and len(test) > 0 and not _same(training, test)
    return SiteData(training, tested=other)


def _same(one: Examples, other: Examples) -> bool:
    return np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)


def _compare(site: str, path: Path, data: SiteData, other: str, known: SiteData) -> None:
    """Refuse a site whose features are not those of another; only those that have names can be compared by name."""
    if data.columns and known.columns and data.columns != known.columns:
        missing = [name for name in known.columns if name not in data.columns]
        more = [name for name in data.columns if name not in known.columns]
        said = [f"it lacks {', '.join(missing[:5])}"] if missing else []
        said += [f"it has {', '.join(more[:5])} besides"] if more else []
        raise InvalidData(
            f"data.files.{site}: {path}: its features are not those of {other}:"
            f" {' and '.join(said) or 'they stand in another order'}; give all sites the same columns of numbers, or"
            " name those to use in the app, App(…, columns=(…))"
        )
    mine, theirs = data.examples.x.shape[1:], known.examples.x.shape[1:]
    if mine != theirs:
        raise InvalidData(
            f"data.files.{site}: {path}: an example has the shape {list(mine)}, one of {other} has {list(theirs)};"
            " one model cannot take both"
        )
