"""Shows RADFed's Table I beside our partitions, and what the solvers and the random walk cost.

Table I: all examples of a set (training and test) over 100 sites, sizes Dir(1), classes Dir(1) or Dir(0.1),
the optimum and then Algorithm 3. The paper has one partition of each, so sizes can only be similar: ours
are means over seeds with the range. The class sizes are those of the published sets; the examples
themselves are not needed.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, print_table, save

from hansa.common.data.measures import Measures, measure
from hansa.common.data.partition import Table
from hansa.common.data.partition.dirichlet import Dirichlet, cross, draw_sizes, nearest, nearest_marginals
from hansa.common.data.partition.moves import Moves, wander, wander_marginals
from hansa.common.data.partition.table import Key, counts
from hansa.common.data.partition.transport import project, rounded
from hansa.common.data.sources import ROOT, SOURCES, read_source

SITES = 100
MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)
CASES = {  # class sizes, λ, and the paper's min, max, mean, deviation, C-score
    "MNIST-1": (MNIST, 1.0, (3, 3365, 700, 667, 0.70)),
    "MNIST-0.1": (MNIST, 0.1, (11, 3327, 700, 658, 1.29)),
    "Cifar10": ((6000,) * 10, 0.1, (2, 2850, 600, 605, 1.29)),
}


def table_one(seeds: int) -> list[dict[str, Any]]:
    """Split each data set with several seeds, with and without Algorithm 3."""
    found = []
    for name, (sizes, concentration, paper) in CASES.items():
        labels = np.repeat(np.arange(10), sizes)
        ours: dict[bool, list[Measures]] = {}
        for walk in (True, False):
            scheme = Dirichlet(classes=concentration, randomise=walk)
            parts = [scheme.part(Table(labels), SITES, 1990 + seed).rows for seed in range(seeds)]
            ours[walk] = [measure(counts(rows, labels, 10)) for rows in parts]
        row: dict[str, Any] = {"set": name, "paper": dict(zip(FIELDS, paper, strict=True))}
        for field in FIELDS:
            row[field] = [getattr(each, field) for each in ours[True]]
        row["c_score_optimum"] = [each.c_score for each in ours[False]]
        found.append(row)
    return found


FIELDS = ("least", "most", "mean", "deviation", "c_score")


def clocked(work: Callable[[], Any], times: int) -> tuple[Any, float]:
    """Return a result and the median time it took."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - start)
    return result, statistics.median(taken)


def solvers(times: int) -> list[dict[str, Any]]:
    """Time each step of both problems."""
    rng = np.random.default_rng(1990)
    nearest(np.eye(2), np.ones(2), np.ones(2))  # cvxpy is imported, and that is not counted
    columns = np.array(MNIST)
    rows = draw_sizes(1.0, SITES, int(columns.sum()), rng)
    goal = rng.dirichlet(np.full(10, 0.1), size=SITES) * rows[:, None]
    best, solve = clocked(lambda: nearest(goal, rows, columns), times)
    _, dykstra = clocked(lambda: project(goal, rows, columns), times)
    walked, walk = clocked(lambda: wander(best, goal, Moves(), np.random.default_rng(1)), times)
    _, whole = clocked(lambda: rounded(project(walked, rows, columns), rows, columns), times)
    far = float(np.sqrt(((walked - goal) ** 2).sum() / ((best - goal) ** 2).sum()))
    first = {"problem": "(1), 100 × 10", "solver": solve, "dykstra": dykstra, "walk": walk, "rounding": whole}
    found = [first | {"cells": 10, "deviation": far}]
    keys = _covertype()
    if keys:
        grid = cross(keys)
        columns = np.bincount(grid.codes)
        rows = draw_sizes(1.0, SITES, int(columns.sum()), rng)
        goal = np.concatenate(
            [rng.dirichlet(np.ones(len(k.names)), size=SITES) * rows[:, None] for k in keys], axis=1
        )
        best, solve = clocked(lambda: nearest_marginals(goal, grid.marginals, rows, columns), 1)
        walked, walk = clocked(lambda: wander_marginals(best, goal, grid.marginals, Moves(), rng), 1)
        _, whole = clocked(lambda: rounded(project(walked, rows, columns), rows, columns), 1)
        loss, least = (((a @ grid.marginals - goal) ** 2).sum() for a in (walked, best))
        label = f"(2), 100 × {len(columns)}"
        second = {"problem": label, "solver": solve, "dykstra": None, "walk": walk, "rounding": whole}
        found.append(second | {"cells": len(columns), "deviation": float(np.sqrt(loss / least))})
    return found


def _covertype() -> list[Key]:
    """Return classes, areas and soils of Covertype, if its files exist."""
    root = os.environ.get(ROOT)
    if not root or SOURCES["covertype-binary"].find(Path(root)) is None:
        print("covertype is not below HANSA_DATA: problem (2) is left out")
        return []
    held = read_source("covertype-binary")
    table = held.table(np.arange(len(held)))
    return [table.classes(), *table.keys.values()]


def main() -> None:
    """Print both tables and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=5)
    chosen = parser.parse_args()
    described = machine()
    found = table_one(chosen.seeds)
    rows = []
    for row in found:
        rows.append((row["set"], "paper", *(f"{value:g}" for value in row["paper"].values()), ""))
        ours = [f"{np.mean(row[f]):.4g} ({min(row[f]):.4g} – {max(row[f]):.4g})" for f in FIELDS]
        rows.append(("", "ours", *ours, f"{np.mean(row['c_score_optimum']):.2f}"))
    print_table(("set", "", "min", "max", "mean", "deviation", "C-score", "C-score of the optimum"), rows)
    print()
    timed = solvers(chosen.repetitions)
    steps = ("solver", "dykstra", "walk", "rounding")
    cells = [
        (t["problem"], *(f"{t[k]:.3f} s" if t[k] else "-" for k in steps), f"{t['deviation']:.3f}")
        for t in timed
    ]
    print_table(("problem", "CLARABEL", "Dykstra", "6·10⁵ moves", "rounding", "deviation / optimum"), cells)
    save("partitions", {"machine": described, "table_one": found, "timings": timed})


if __name__ == "__main__":
    main()
