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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accuracy_figures import level, markdown, site_losses
from accuracy_table import ROOT, Row, Table, read_table
from blake3 import blake3
from harness import RESULTS, end_in_order, machine, save

from hansa.common.run.trial import outcome, run_trial
from hansa.common.values.errors import HansaError

TABLES = Path(__file__).with_name("tables")
CODE = ("common", "controller", "evaluator", "learner", "protos")


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
    figures = asdict(outcome(report, row.slow, row.within, row.personal))
    return known | figures | {"site_losses": site_losses(report)}


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

    def tuned(self, row: Row) -> Row:
        """Return a row with the value that did best, of those that were measured."""
        tune = self._table.tune
        candidates = tune.candidates(row) if tune else {}
        if not tune or not candidates:
            return row
        runs = {value: self.find(candidate, tune.seed, None) for value, candidate in candidates.items()}
        levels = {value: level(run) for value, run in runs.items() if run and run["curve"]}
        if not levels:
            return row
        return replace(row, changes={**row.changes, tune.key: max(levels, key=lambda value: levels[value])})


class Driver:
    """Measures what is missing in a table."""

    def __init__(self, results: Results, code: str, accepted: str | None, again: bool) -> None:
        self._results, self._code, self._again = results, code, again
        self._accepted = accepted  # code whose runs need not be repeated; None: any
        self.failed = 0

    def measure(self, table: Table, rows: list[Row], seeds: list[int]) -> None:
        """Choose the parameter that the table tunes, then run every row with every seed."""
        for row in rows if table.tune else ():
            for candidate in table.tune.candidates(row).values():
                self._provide(candidate, table.tune.seed)
        # One seed at a time: half a table of two seeds cannot rank.
        for seed in seeds:
            for row in rows:
                self._provide(self._results.tuned(row), seed)

    def _provide(self, row: Row, seed: int) -> None:
        if not self._again and self._results.find(row, seed, self._accepted):
            return
        print(f"{row.name}, seed {seed} …", flush=True)
        try:
            self._results.add(measure(row, seed, self._code))
        except HansaError as error:
            print(f"{row.name}, seed {seed}: {error}", file=sys.stderr)
            self.failed += 1


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
    seeds, code = list(chosen.seeds or table.seeds), code_version()
    results = Results(table)
    end_in_order()
    os.chdir(ROOT)  # apps are named relative to it
    driver = Driver(results, code, None if chosen.keep else code, chosen.again)
    if not chosen.only_print:
        driver.measure(table, rows, seeds)
    rows = [results.tuned(row) for row in rows]
    runs = [[run for seed in seeds if (run := results.find(row, seed, None))] for row in rows]
    print(f"\n{markdown(table, rows, runs, code)}")
    sys.exit(1 if driver.failed else 0)


if __name__ == "__main__":
    main()
