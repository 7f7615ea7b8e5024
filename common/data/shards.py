"""A partition as files: one per site, a test file, and a record of how they were made."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from hansa.common.data.division import Division, Shard, divide
from hansa.common.data.examples import Schema, load_npz
from hansa.common.data.measures import Measures, measure
from hansa.common.data.partition import Key, parse_partition
from hansa.common.data.partition.folds import Fold, folds
from hansa.common.data.partition.metis import Metis, placement
from hansa.common.job.spec import DataSpec
from hansa.common.values.errors import InvalidData, InvalidInput, Taken
from hansa.common.values.wording.words import in_order, plain

RECORD, TEST = "partition.json", "test.npz"
POOLED = "central"  # the name of the one site that holds everything


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
    """Write one file per site, with its share of the test set, a file with all test data, and a record.

    The record has the folds of a cross-validation by site, if there are to be any: those of `spec.holdout`,
    or `fold_count` of them.
    """
    _require_empty(folder)
    division = divide(spec, sites, seed, root, app)
    names = [shard.name for shard in division.shards]
    if spec.holdout:
        fold_count, nested = spec.holdout.folds, spec.holdout.nested
    sets = folds(names, seed, fold_count, nested) if fold_count else []
    return _write(division, spec, seed, folder, sets)


def write_pooled(
    spec: DataSpec,
    sites: int | None,
    seed: int,
    folder: Path,
    root: Path | None = None,
    app: Schema | None = None,
    fold: Callable[[Sequence[str]], Fold[str]] = lambda names: Fold((), (), tuple(names)),
) -> tuple[list[Path], Fold[str]]:
    """Write the data of all sites that train into one file, for central training, and those of the others.

    The file has exactly the rows that the sites would have, for training and for testing. `fold` says which
    of the sites train. Return the files, and what each site would do without central training.
    """
    _require_empty(folder)
    division = divide(spec, sites, seed, root, app)
    parts = fold([shard.name for shard in division.shards])
    training = [shard for shard in division.shards if shard.name in parts.train]
    others = [shard for shard in division.shards if shard.name not in parts.train]
    if any(shard.name == POOLED for shard in others):
        raise InvalidInput(f"a site that is held out is called {POOLED}, like the one that trains centrally")
    whole = Shard(
        POOLED,
        np.sort(np.concatenate([shard.rows for shard in training])),
        np.sort(np.concatenate([shard.test for shard in training])),
    )
    return _write(replace(division, shards=[whole, *others]), spec, seed, folder, []), parts


def _require_empty(folder: Path) -> None:
    """Refuse a folder that has files in it, before a large set is read."""
    if folder.is_dir() and any(folder.iterdir()):
        raise Taken(f"{folder}: not empty; choose a new folder, because files of two partitions must not mix")


def _write(division: Division, spec: DataSpec, seed: int, folder: Path, sets: list[Fold[str]]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write_files(division, spec, seed, folder, sets)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be written: {error.strerror or error}") from None


def _write_files(
    division: Division, spec: DataSpec, seed: int, folder: Path, sets: list[Fold[str]]
) -> list[Path]:
    examples = division.data.examples
    paths, described = [], []
    for shard in division.shards:
        path = folder / f"{shard.name}.npz"
        train, test = examples.take(shard.rows), examples.take(shard.test)
        arrays = {"x": train.x, "y": train.y}
        if len(division.test):
            arrays |= {"x_test": test.x, "y_test": test.y}
        np.savez(path, allow_pickle=False, **arrays)
        paths.append(path)
        described.append(_described(path, len(train)) | {"site": shard.name, "test_examples": len(test)})
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
        test = examples.take(division.test)
        np.savez(folder / TEST, allow_pickle=False, x=test.x, y=test.y)
        record["test"] = _described(folder / TEST, len(test))
    if isinstance(division.scheme, Metis) and not division.scheme.sizes.startswith("uniform"):
        machines = placement(division.matrix.sum(axis=1))
        record["placement"] = {path.stem: machine for path, machine in zip(paths, machines, strict=True)}
    if sets:
        record["folds"] = [asdict(fold) for fold in sets]
    (folder / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return paths


def _described(path: Path, examples: int) -> dict[str, Any]:
    return {"file": path.name, "examples": examples, "blake3": blake3(path.read_bytes()).hexdigest()}


@dataclass(frozen=True)
class Picture:
    """A partition as it is described and drawn."""

    title: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    matrix: np.ndarray
    measures: Measures


def read_shards(folder: Path) -> Picture:
    """Read a partition's record, or count the examples in the folder's files if there is none."""
    record = folder / RECORD
    if record.is_file():
        try:
            document = json.loads(record.read_text())
            matrix = np.array(document["matrix"], dtype=np.int64)
            sites = tuple(str(each["site"]) for each in document["sites"])
            classes = tuple(map(str, document["classes"]))
            source, scheme = Path(document["source"]).name, _words(document["scheme"])
            title = plain(f"{source}: {scheme}, seed {document['seed']}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidData(f"{record}: not a partition's record: {error}") from None
        if matrix.shape != (len(sites), len(classes)) or not matrix.size:
            raise InvalidData(
                f"{record}: the matrix does not fit {len(sites)} sites and {len(classes)} classes"
            )
        _require_unchanged(folder, document["sites"])
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
                f"{path}: y has shape {list(y.shape)} and holds {y.dtype.name}; to count classes it needs"
                " an integer for each example, and at least one example"
            )
    known = Key.of(np.concatenate(labels))
    ends = np.cumsum([len(y) for y in labels])
    matrix = np.array(
        [np.bincount(codes, minlength=len(known.names)) for codes in np.split(known.codes, ends[:-1])]
    )
    return Picture(str(folder), tuple(path.stem for path in paths), known.names, matrix, measure(matrix))


def _require_unchanged(folder: Path, sites: list[dict[str, Any]]) -> None:
    """Refuse files that differ from the record; files that were moved to their sites may be missing."""
    for site in sites:
        path = folder / str(site.get("file", ""))
        if path.is_file() and blake3(path.read_bytes()).hexdigest() != site.get("blake3"):
            raise InvalidData(
                f"{path}: not the file that {RECORD} describes; split the data again, or remove {RECORD}"
                " to count what the files hold now"
            )


def _words(scheme: dict[str, Any]) -> str:
    """Describe how a partition was made, without parameters that have their defaults."""
    usual = parse_partition({name: scheme[name] for name in scheme if name in ("kind", "by", "labels")})
    unsaid = {name: value for name, value in usual.model_dump(mode="json").items() if name not in _ALWAYS}
    shown = {
        name: value for name, value in scheme.items() if name != "kind" and unsaid.get(name, _ALWAYS) != value
    }
    return ", ".join([str(scheme["kind"]), *(f"{name} {_short(value)}" for name, value in shown.items())])


_ALWAYS = ("by", "labels", "sizes", "classes", "eta")


def _short(value: object) -> str:
    return (
        " ".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else str(value)
    )
