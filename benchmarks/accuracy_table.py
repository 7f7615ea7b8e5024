"""What an accuracy table says: its rows, and how a parameter of each row is chosen."""

import ast
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from blake3 import blake3

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"title", "budget", "seeds", "job", "set", "slow", "within", "rows", "tune"}
ROW = {"job", "set", "slow", "personal"}
TUNE = {"seed", "key", "values", "set"}


@dataclass(frozen=True)
class Row:
    """One method: a job file, what is changed in it, and which sites are slowed."""

    name: str
    job: Path
    changes: Mapping[str, object]
    slow: Mapping[str, float]
    within: float | None  # virtual time that counts
    personal: bool  # whether the accuracy is that of the sites' own models, as Ditto has them

    def definition(self, seed: int) -> str:
        """Return a digest of everything that decides a run's figures, except Hansa's code.

        Comments do not count, nor do other apps in the same file.
        """
        job = yaml.safe_load(self.job.read_text())
        path, _, name = str(self.changes.get("app") or job["app"]).rpartition(":")
        source = ROOT / path
        app = essence(source.read_text(), name) if source.is_file() else path
        parts = [job, app, self.changes, self.slow, self.within, self.personal, seed]
        return blake3(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def essence(source: str, name: str) -> list[str]:
    """Return the statements of a module that a name depends on, without comments and docstrings."""
    statements = {statement: _names(statement) for statement in ast.parse(source).body}
    wanted, size = {name}, 0
    while len(wanted) > size:
        size = len(wanted)
        for bound, used in statements.values():
            wanted |= used if bound & wanted else set()
    return [ast.unparse(_bare(each)) for each, (bound, _) in statements.items() if bound & wanted]


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement at the top of a module binds, and those that it uses."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}, used
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in statement.names}, used
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}, used


def _bare(statement: ast.stmt) -> ast.stmt:
    """Take the docstrings out of a statement."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return statement


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
        _require(row, ROW, f"{path}: rows.{name}.", "a row has")
        changes = {**document.get("set", {}), **row.get("set", {})}
        job, slow = row.get("job", document.get("job", "")), row.get("slow", document.get("slow", {}))
        personal = bool(row.get("personal", False))
        rows.append(Row(name, ROOT / job, changes, slow, document.get("within"), personal))
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
