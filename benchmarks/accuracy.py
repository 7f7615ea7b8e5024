"""Accuracy tables: each row is a job file with changes, run by `hansa run` with several seeds.

python benchmarks/accuracy.py TABLE [--rows ROW …] [--seeds 1990 1991] [--again] [--keep] [--print]

A table is a file in benchmarks/tables (README.md there describes its keys). Results go to
results/accuracy_TABLE.json after every run. A run with the same definition and the same code is not
repeated, so a long table can be measured in pieces.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from blake3 import blake3
from harness import RESULTS, end_in_order, machine, save

from hansa.common.run.trial import outcome, run_trial
from hansa.common.ui.options import amount
from hansa.common.values.errors import HansaError

ROOT = Path(__file__).resolve().parents[1]
TABLES = Path(__file__).with_name("tables")
CODE = ("common", "controller", "evaluator", "learner", "protos")
KEYS = {"title", "budget", "seeds", "job", "set", "slow", "within", "rows"}


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
        told = json.dumps([files, self.changes, self.slow, self.within, seed], sort_keys=True)
        return blake3(told.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Table:
    """What is compared, and under which conditions."""

    name: str
    title: str
    budget: str  # what all rows have in common
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]


def read_table(path: Path) -> Table:
    """Read a table's definition; what is above `rows` applies to all of them."""
    held = yaml.safe_load(path.read_text())
    unknown = sorted(held.keys() - KEYS)
    if unknown:
        sys.exit(f"{path}: {unknown[0]}: unknown key; there are {', '.join(sorted(KEYS))}")
    rows = []
    for name, own in held["rows"].items():
        said = own or {}
        unknown = sorted(said.keys() - {"job", "set", "slow"})
        if unknown:
            sys.exit(f"{path}: rows.{name}.{unknown[0]}: unknown key; a row has job, set and slow")
        changes = {**held.get("set", {}), **said.get("set", {})}
        job, slow = said.get("job", held.get("job", "")), said.get("slow", held.get("slow", {}))
        rows.append(Row(name, ROOT / job, changes, slow, held.get("within")))
    return Table(
        path.stem, held["title"], held["budget"], tuple(held.get("seeds", (1990, 1991))), tuple(rows)
    )


def code_version() -> str:
    """Return a digest of the code that runs, so that figures of older code can be recognised."""
    digest = blake3()
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def measure(row: Row, seed: int, code: str) -> dict[str, Any]:
    """Run a row once."""
    definition, load, started = row.definition(seed), os.getloadavg()[0], time.time()
    with tempfile.TemporaryDirectory(prefix="hansa-accuracy-") as folder:
        report = run_trial(row.job, Path(folder) / "out", {**row.changes, "seed": seed}, row.slow)
    found = outcome(report, row.slow, row.within)
    loads = [round(load, 2), round(os.getloadavg()[0], 2)]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started))
    known = {
        "row": row.name,
        "seed": seed,
        "definition": definition,
        "code": code,
        "at": stamp,
        "load": loads,
    }
    return known | asdict(found)


class Results:
    """The measured runs of a table, on disk."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._name = f"accuracy_{table.name}"
        path = RESULTS / f"{self._name}.json"
        self._runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []

    def find(self, row: Row, seed: int, code: str | None) -> dict[str, Any] | None:
        """Return the run of a row as it is defined now, by this code or (None) by any."""
        wanted = row.definition(seed)
        fits = (r for r in self._runs if (r["row"], r["seed"], r["definition"]) == (row.name, seed, wanted))
        return next((run for run in fits if code in (None, run["code"])), None)

    def add(self, run: dict[str, Any]) -> None:
        """Replace an older run of the same row and seed, and save all runs."""
        self._runs = [old for old in self._runs if (old["row"], old["seed"]) != (run["row"], run["seed"])] + [
            run
        ]
        order = [row.name for row in self._table.rows]
        self._runs.sort(key=lambda r: (order.index(r["row"]) if r["row"] in order else len(order), r["seed"]))
        about = {"title": self._table.title, "budget": self._table.budget, "machine": machine()}
        save(self._name, {**about, "runs": self._runs})


def _share(values: Iterable[float | None]) -> str:
    """Return the mean of some shares as text, with the range."""
    found = [value for value in values if value is not None]
    if not found:
        return "–"
    spread = f" ({min(found) * 100:.1f} – {max(found) * 100:.1f})" if len(found) > 1 else ""
    return f"{fmean(found) * 100:.1f} %{spread}"


def _mean(runs: Sequence[Mapping[str, Any]], field: str) -> float:
    return fmean(run[field] for run in runs)


def print_markdown(
    table: Table, results: Results, rows: Sequence[Row], seeds: Sequence[int], code: str
) -> None:
    """Print the runs that match the current definition of a table."""
    print(f"\n{table.title}\n{table.budget}\n")
    counts = ["rounds", "updates", "steps", *(["virtual"] if any(row.within for row in rows) else [])]
    titles = ["row", "seeds", "accuracy", "best", "merges", *counts[1:], "up", "down", "seconds"]
    for line in (titles, ["---"] * len(titles)):
        print(f"| {' | '.join(line)} |")
    older = False
    for row in rows:
        runs = [run for seed in seeds if (run := results.find(row, seed, None))]
        if not runs:
            print(f"| {row.name} | 0 {'| ' * (len(titles) - 2)}|")
            continue
        mark = "" if all(run["code"] == code for run in runs) else " †"
        older = older or bool(mark)
        whole = " | ".join(f"{_mean(runs, field):.0f}" for field in counts)
        traffic = " | ".join(amount(round(_mean(runs, field))) for field in ("bytes_up", "bytes_down"))
        quality = f"{_share(run['accuracy'] for run in runs)} | {_share(run['best'] for run in runs)}"
        seconds = f"{_mean(runs, 'seconds'):.0f}"
        print(f"| {row.name}{mark} | {len(runs)} | {quality} | {whole} | {traffic} | {seconds} |")
    if older:
        print("\n† measured with other code")


def main() -> None:
    """Measure the missing runs of a table and print it."""
    known = sorted(path.stem for path in TABLES.glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=known)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of the table's")
    parser.add_argument("--again", action="store_true", help="repeat runs that exist already")
    parser.add_argument(
        "--keep", action="store_true", help="accept runs of the same definition by other code"
    )
    parser.add_argument("--print", action="store_true", dest="only_print", help="only print the table")
    chosen = parser.parse_args()
    table = read_table(TABLES / f"{chosen.table}.yaml")
    names = [row.name for row in table.rows]
    unknown = sorted(set(chosen.rows or ()) - set(names))
    if unknown:
        parser.error(f"there is no row {unknown[0]}; there are {', '.join(names)}")
    rows = [row for row in table.rows if row.name in (chosen.rows or names)]
    seeds, code = chosen.seeds or table.seeds, code_version()
    results = Results(table)
    end_in_order()
    os.chdir(ROOT)  # apps are named relative to it
    failed = 0
    # One seed at a time: half a table of two seeds cannot rank.
    for seed in [] if chosen.only_print else seeds:
        for row in rows:
            if not chosen.again and results.find(row, seed, None if chosen.keep else code):
                continue
            print(f"{row.name}, seed {seed} …", flush=True)
            try:
                results.add(measure(row, seed, code))
            except HansaError as error:
                print(f"{row.name}, seed {seed}: {error}", file=sys.stderr)
                failed += 1
    print_markdown(table, results, rows, seeds, code)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
