"""Splits a data set across sites as the `data:` section of a job says."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hansa.common.data.dataset import TEST_SHARE, DataSet
from hansa.common.data.examples import Examples, Schema
from hansa.common.data.holdout import split
from hansa.common.data.own import fitted
from hansa.common.data.partition import Iid, Key, Scheme, parse_partition
from hansa.common.data.partition.natural import Natural
from hansa.common.data.partition.table import counts
from hansa.common.data.sources import read_source
from hansa.common.job.spec import DataSpec
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import ValidationSpec

SITES = 5  # if neither the job nor the operator says how many


@dataclass(frozen=True)
class Shard:
    """The rows of one site, for training and for testing."""

    name: str
    rows: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Division:
    """A data set that was split: which site has which rows, and the class that each row counts for."""

    data: DataSet
    scheme: Scheme
    shards: list[Shard]
    test: np.ndarray  # all rows held out for testing
    classes: Key | None

    @property
    def matrix(self) -> np.ndarray:
        """Counts, sites × classes; one column if the labels are not classes."""
        codes = self.classes.codes if self.classes else np.zeros(len(self.data), np.int64)
        names = self.names
        return counts([shard.rows for shard in self.shards], codes, len(names))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the matrix's columns."""
        return self.classes.names if self.classes else ("all",)


def divide(
    spec: DataSpec, sites: int | None, seed: int, root: Path | None = None, app: Schema | None = None
) -> Division:
    """Read a data set and split it as a job's `data:` section says, with an app's columns and classes."""
    scheme = parse_partition(spec.partition)
    if spec.source is None:
        raise InvalidInput(
            "data.files: the sites have their own files, so there is nothing to split; give data.source"
        )
    if app and app.label and spec.label not in (None, app.label):
        raise InvalidInput(f"data.label: the job has {spec.label!r}, but the app has label={app.label!r}")
    data = read_source(spec.source, root, spec.label or (app.label if app else None))
    if app:
        data = fitted(app, Path(spec.source), data)
    if not isinstance(scheme, Iid | Natural):  # the others split by class
        data.refuse_empty_classes()
    count = sites or spec.sites
    share = 0.0 if spec.holdout else spec.test  # whole sites test instead
    train, test = data.held_out(seed, share)
    if spec.examples is not None:
        train = data.sampled(train, spec.examples, seed)
    if isinstance(scheme, Natural) and (share is not None or not data.tested):
        if spec.examples is not None:
            raise InvalidInput(
                "data.examples: the scheme natural splits rows by their key; use fewer sites instead"
            )
        shards = _by_key(scheme, data, count, seed, TEST_SHARE if share is None else share)
        test = np.sort(np.concatenate([shard.test for shard in shards]))
    else:
        if isinstance(scheme, Natural) and count is None:
            count = len(scheme.values(data.table(train)))
        parts = scheme.part(data.table(train), count or SITES, seed)
        names = parts.names or [f"site-{number}" for number in range(1, len(parts.rows) + 1)]
        tests = [test[rows] for rows in _shares(len(test), len(parts.rows), seed)]
        shards = [
            Shard(*each) for each in zip(names, [train[rows] for rows in parts.rows], tests, strict=True)
        ]
    examples = replace(data.examples, x=_painted(scheme, data.examples, train, test, seed))
    return Division(replace(data, examples=examples), scheme, shards, test, _classes(data))


def _shares(rows: int, sites: int, seed: int) -> list[np.ndarray]:
    """Split a test set evenly; with a small one, some sites get no rows."""
    if rows < sites:
        return [np.arange(at, min(at + 1, rows)) for at in range(sites)]
    return (
        Iid().part(DataSet(Examples(np.zeros(rows), np.zeros(rows))).table(np.arange(rows)), sites, seed).rows
    )


def _by_key(scheme: Natural, data: DataSet, count: int | None, seed: int, test: float) -> list[Shard]:
    """Split rows by a key and hold out some of each class at each site; the last ones if rows are ordered."""
    table = data.table(np.arange(len(data)))
    parts = scheme.part(table, count or len(scheme.values(table)), seed)
    shards = []
    for name, rows in zip(parts.names, parts.rows, strict=True):
        if data.ordered:
            cut = len(rows) - min(round(test * len(rows)), len(rows) - 1)
            train, held_out = np.arange(cut), np.arange(cut, len(rows))
        else:
            train, held_out = split(
                data.examples.y[rows], ValidationSpec(fraction=test), seed, SiteName(name), "test"
            )
        shards.append(Shard(name, rows[train], rows[held_out]))
    return shards


def _painted(
    scheme: Scheme, examples: Examples, train: np.ndarray, test: np.ndarray, seed: int
) -> np.ndarray:
    """Return the features, changed by a scheme that skews them."""
    if type(scheme).paint is Scheme.paint:
        return examples.x
    x = examples.x.copy()
    for rows, tested in ((train, False), (test, True)):
        if len(rows):
            x[rows] = scheme.paint(x[rows], examples.y[rows], seed, tested)
    return x


def _classes(data: DataSet) -> Key | None:
    labels = data.examples.y
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return None
    classes = Key.of(labels)
    if data.classes and labels.min() >= 0 and labels.max() < len(data.classes):
        return Key(classes.codes, tuple(data.classes[int(value)] for value in classes.names))
    return classes
