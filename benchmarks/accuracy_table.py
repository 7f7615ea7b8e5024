"""What an accuracy table says: its rows, and how a parameter of each row is chosen."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from blake3 import blake3

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"title", "budget", "seeds", "job", "set", "slow", "within", "rows", "tune"}
TUNE = {"seed", "key", "values", "set"}


@dataclass(frozen=True)
class Row:
    """One method: a job file, what is changed in it, and which sites are slowed."""

    name: str
    job: Path
    changes: Mapping[str, object]
    slow: Mapping[str, float]
    within: float | None  # virtual time that counts

    def definition(self, seed: int) -> str:
        """Return a digest of everything that decides what a run computes, except the code."""
        app = str(self.changes.get("app") or yaml.safe_load(self.job.read_text())["app"]).rpartition(":")[0]
        files = [path.read_text() for path in (self.job, ROOT / app) if path.is_file()]
        parts = json.dumps([files, self.changes, self.slow, self.within, seed], sort_keys=True)
        return blake3(parts.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Tuning:
    """How one parameter is chosen for each row: by validation, with a seed that the table does not use."""

    seed: int
    key: str
    values: tuple[float, ...]
    changes: Mapping[str, object]  # such that models are evaluated on validation data

    def candidates(self, row: Row) -> dict[float, Row]:
        """Return a row to measure for each value; none if the row has a value of its own."""
        if self.key in row.changes:
            return {}
        return {
            value: replace(
                row,
                name=f"{row.name}, {self.key} {value:g}",
                changes={**row.changes, **self.changes, self.key: value},
            )
            for value in self.values
        }


@dataclass(frozen=True)
class Table:
    """What is compared, and under which conditions."""

    name: str
    title: str
    budget: str  # what all rows have in common
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    tune: Tuning | None


def read_table(path: Path) -> Table:
    """Read a table's definition; what is above `rows` applies to all of them."""
    document = yaml.safe_load(path.read_text())
    _require(document, KEYS, f"{path}: ", "there are")
    rows = []
    for name, own in document["rows"].items():
        row = own or {}
        _require(row, {"job", "set", "slow"}, f"{path}: rows.{name}.", "a row has")
        changes = {**document.get("set", {}), **row.get("set", {})}
        job, slow = row.get("job", document.get("job", "")), row.get("slow", document.get("slow", {}))
        rows.append(Row(name, ROOT / job, changes, slow, document.get("within")))
    tune = document.get("tune")
    if tune:
        _require(tune, TUNE, f"{path}: tune.", "it has")
        tune = Tuning(tune["seed"], tune["key"], tuple(tune["values"]), tune.get("set", {}))
    seeds = tuple(document.get("seeds", (1990, 1991)))
    if tune and tune.seed in seeds:
        sys.exit(f"{path}: tune.seed: {tune.seed} is one of the table's own seeds; choose another")
    return Table(path.stem, document["title"], document["budget"], seeds, tuple(rows), tune)


def _require(document: Mapping[str, object], known: set[str], place: str, there_are: str) -> None:
    """Refuse keys that nobody reads."""
    unknown = sorted(document.keys() - known)
    if unknown:
        sys.exit(f"{place}{unknown[0]}: unknown key; {there_are} {', '.join(sorted(known))}")
