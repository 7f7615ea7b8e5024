"""From a data set and a partition to one file per site, a test file, and a record of how they were made."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from hansa.common.data.dataset import TEST_SHARE, DataSet
from hansa.common.data.examples import Examples, Schema, load_npz
from hansa.common.data.holdout import split
from hansa.common.data.measures import Measures, measure
from hansa.common.data.own import fitted
from hansa.common.data.partition import Iid, Key, Scheme, parse_partition
from hansa.common.data.partition.folds import Fold, folds
from hansa.common.data.partition.metis import Metis, placement
from hansa.common.data.partition.natural import Natural
from hansa.common.data.partition.table import counts
from hansa.common.data.sources import read_source
from hansa.common.job.spec import DataSpec
from hansa.common.values.errors import InvalidData, InvalidInput, Taken
from hansa.common.values.ids import SiteName
from hansa.common.values.training import ValidationSpec
from hansa.common.values.words import in_order, plain

RECORD, TEST = "partition.json", "test.npz"
SITES = 5
POOLED = "central"  # the one site that holds everything


@dataclass(frozen=True)
class Shard:
    """The rows of one site, for training and for testing."""

    name: str
    rows: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Division:
    """A data set, parted: who has which rows, and which class each row counts for in the matrix."""

    data: DataSet
    scheme: Scheme
    shards: list[Shard]
    test: np.ndarray  # all rows that are held out for testing
    classes: Key | None

    @property
    def matrix(self) -> np.ndarray:
        """Sites × classes; for labels that are no classes, one column."""
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
    """Read a data set and part it as the `data:` section of a job says, with the columns and classes of an app."""
    scheme = parse_partition(spec.partition)
    if spec.source is None:
        raise InvalidInput(
            "data.files: the sites have their own files, so there is nothing to split; give data.source"
        )
    if app and app.label and spec.label not in (None, app.label):
        raise InvalidInput(f"data.label: the job says {spec.label!r}, and the app says label={app.label!r}")
    data = read_source(spec.source, root, spec.label or (app.label if app else None))
    if app:
        data = fitted(app, Path(spec.source), data)
    if not isinstance(scheme, Iid | Natural):  # the others part by class
        data.refuse_empty_classes()
    count = sites or spec.sites
    train, test = data.held_out(seed, spec.test)
    if spec.examples is not None:
        train = data.sampled(train, spec.examples, seed)
    if isinstance(scheme, Natural) and (spec.test is not None or not data.tested):
        if spec.examples is not None:
            raise InvalidInput(
                "data.examples: the scheme natural parts rows by their key; take fewer sites instead"
            )
        shards = _by_key(scheme, data, count, seed, TEST_SHARE if spec.test is None else spec.test)
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
    """Part a test set evenly; a small one leaves some sites without."""
    if rows < sites:
        return [np.arange(at, min(at + 1, rows)) for at in range(sites)]
    return (
        Iid().part(DataSet(Examples(np.zeros(rows), np.zeros(rows))).table(np.arange(rows)), sites, seed).rows
    )


def _by_key(scheme: Natural, data: DataSet, count: int | None, seed: int, test: float) -> list[Shard]:
    """Part all rows by a key and hold out some of each class at each site: the last ones where rows follow in time."""
    table = data.table(np.arange(len(data)))
    parts = scheme.part(table, count or len(scheme.values(table)), seed)
    found = []
    for name, rows in zip(parts.names, parts.rows, strict=True):
        if data.ordered:
            cut = len(rows) - min(round(test * len(rows)), len(rows) - 1)
            mine, held = np.arange(cut), np.arange(cut, len(rows))
        else:
            mine, held = split(
                data.examples.y[rows], ValidationSpec(fraction=test), seed, SiteName(name), "test"
            )
        found.append(Shard(name, rows[mine], rows[held]))
    return found


def _painted(
    scheme: Scheme, examples: Examples, train: np.ndarray, test: np.ndarray, seed: int
) -> np.ndarray:
    """Return the features as a scheme that skews them wants them."""
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
    found = Key.of(labels)
    if data.classes and labels.min() >= 0 and labels.max() < len(data.classes):
        return Key(found.codes, tuple(data.classes[int(value)] for value in found.names))
    return found


def write_shards(
    spec: DataSpec,
    sites: int | None,
    seed: int,
    folder: Path,
    root: Path | None = None,
    fold_count: int = 0,
    nested: bool = False,
    app: Schema | None = None,
) -> list[Path]:
    """Write one file per site with x, y and a share of the test set as x_test, y_test; also test.npz and a record."""
    _require_empty(folder)
    division = divide(spec, sites, seed, root, app)
    made = folds([shard.name for shard in division.shards], seed, fold_count, nested) if fold_count else []
    return _write(division, spec, seed, folder, made)


def write_pooled(
    spec: DataSpec,
    sites: int | None,
    seed: int,
    folder: Path,
    root: Path | None = None,
    app: Schema | None = None,
) -> tuple[Path, int]:
    """Write the data of all sites into one file, for central training; return it, and how many sites they are of.

    They are the very rows that the sites would have, for training and for testing.
    """
    _require_empty(folder)
    division = divide(spec, sites, seed, root, app)
    shards = division.shards
    whole = Shard(
        POOLED,
        np.sort(np.concatenate([shard.rows for shard in shards])),
        np.sort(np.concatenate([shard.test for shard in shards])),
    )
    (path,) = _write(replace(division, shards=[whole]), spec, seed, folder, [])
    return path, len(shards)


def _require_empty(folder: Path) -> None:
    """Refuse a folder with files in it; said before a large set is read."""
    if folder.is_dir() and any(folder.iterdir()):
        raise Taken(f"{folder}: not empty; choose a new folder, for files of two partitions must not mix")


def _write(division: Division, spec: DataSpec, seed: int, folder: Path, made: list[Fold[str]]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _written(division, spec, seed, folder, made)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be written: {error.strerror or error}") from None


def _written(
    division: Division, spec: DataSpec, seed: int, folder: Path, made: list[Fold[str]]
) -> list[Path]:
    examples = division.data.examples
    paths, described = [], []
    for shard in division.shards:
        path = folder / f"{shard.name}.npz"
        mine, held = examples.take(shard.rows), examples.take(shard.test)
        arrays = {"x": mine.x, "y": mine.y} | (
            {"x_test": held.x, "y_test": held.y} if len(division.test) else {}
        )
        np.savez(path, allow_pickle=False, **arrays)
        paths.append(path)
        described.append(_described(path, len(mine)) | {"site": shard.name, "test_examples": len(held)})
    record: dict[str, Any] = {
        "format": 1,
        "source": spec.source,
        "seed": seed,
        "label": spec.label,
        "examples": spec.examples,
        "test_share": spec.test,
        "scheme": division.scheme.model_dump(mode="json"),
        "sites": described,
        "classes": list(division.names),
        "matrix": division.matrix.tolist(),
        "measures": asdict(measure(division.matrix)),
    }
    if len(division.test):
        held = examples.take(division.test)
        np.savez(folder / TEST, allow_pickle=False, x=held.x, y=held.y)
        record["test"] = _described(folder / TEST, len(held))
    if isinstance(division.scheme, Metis) and not division.scheme.sizes.startswith("uniform"):
        machines = placement(division.matrix.sum(axis=1))
        record["placement"] = {path.stem: machine for path, machine in zip(paths, machines, strict=True)}
    if made:
        record["folds"] = [asdict(fold) for fold in made]
    (folder / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return paths


def _described(path: Path, examples: int) -> dict[str, Any]:
    return {"file": path.name, "examples": examples, "blake3": blake3(path.read_bytes()).hexdigest()}


@dataclass(frozen=True)
class Picture:
    """What is known of a folder of shards."""

    title: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    matrix: np.ndarray
    measures: Measures


def read_shards(folder: Path) -> Picture:
    """Read a partition's record, or count what the files of a folder hold if there is none."""
    record = folder / RECORD
    if record.is_file():
        try:
            held = json.loads(record.read_text())
            matrix = np.array(held["matrix"], dtype=np.int64)
            sites, classes = (
                tuple(str(each["site"]) for each in held["sites"]),
                tuple(map(str, held["classes"])),
            )
            title = plain(f"{Path(held['source']).name}: {_words(held['scheme'])}, seed {held['seed']}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidData(f"{record}: not a partition's record: {error}") from None
        if matrix.shape != (len(sites), len(classes)) or not matrix.size:
            raise InvalidData(
                f"{record}: the matrix does not fit {len(sites)} sites and {len(classes)} classes"
            )
        _still_as_described(folder, held["sites"])
        return Picture(title, sites, classes, matrix, measure(matrix))
    paths = sorted(folder.glob("*.npz"), key=lambda path: in_order(path.stem)) if folder.is_dir() else []
    paths = [path for path in paths if path.name != TEST]
    if not paths:
        raise InvalidInput(
            f"{folder}: no {RECORD} and no .npz files in it; `hansa data partition` makes them"
        )
    labels = [load_npz(path, "train").y for path in paths]
    for path, y in zip(paths, labels, strict=True):
        if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
            raise InvalidData(
                f"{path}: y has shape {list(y.shape)} and holds {y.dtype.name}; to count classes it needs an integer"
                " for each example, at least one"
            )
    known = Key.of(np.concatenate(labels))
    ends = np.cumsum([len(y) for y in labels])
    matrix = np.array(
        [np.bincount(codes, minlength=len(known.names)) for codes in np.split(known.codes, ends[:-1])]
    )
    return Picture(str(folder), tuple(path.stem for path in paths), known.names, matrix, measure(matrix))


def _still_as_described(folder: Path, sites: list[dict[str, Any]]) -> None:
    """Refuse files that are not those of the record; files that have gone to their sites are not missed."""
    for site in sites:
        path = folder / str(site.get("file", ""))
        if path.is_file() and blake3(path.read_bytes()).hexdigest() != site.get("blake3"):
            raise InvalidData(
                f"{path}: not the file that {RECORD} describes; part the data again, or remove {RECORD} to count what"
                " the files hold now"
            )


def _words(scheme: dict[str, Any]) -> str:
    """Say how a partition was made; what is as usual goes without saying."""
    usual = parse_partition({name: scheme[name] for name in scheme if name in ("kind", "by", "labels")})
    unsaid = {name: value for name, value in usual.model_dump(mode="json").items() if name not in _ALWAYS}
    told = {
        name: value for name, value in scheme.items() if name != "kind" and unsaid.get(name, _ALWAYS) != value
    }
    return ", ".join([str(scheme["kind"]), *(f"{name} {_short(value)}" for name, value in told.items())])


_ALWAYS = ("by", "labels", "sizes", "classes", "eta")


def _short(value: object) -> str:
    return (
        " ".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else str(value)
    )
