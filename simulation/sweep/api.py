"""A sweep from its file to its results, for the command and for Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.common.client.rows import Rows
from hansa.common.rpc.channel import Endpoint
from hansa.simulation.sweep.driver import Driver, claimed
from hansa.simulation.sweep.export import run_rows, write_summary
from hansa.simulation.sweep.plan import Plan, make_plan
from hansa.simulation.sweep.progress import progress
from hansa.simulation.sweep.runners import Choice, Runner
from hansa.simulation.sweep.table import Table

SWEEPS = Path(".hansa/sweeps")


class SweepRows(Rows):
    """The table of a sweep, a row for each combination; `runs` has a row for each run."""

    def __init__(self, table: Table, folder: Path) -> None:
        super().__init__(map(flat_row, table.documents()))
        self.folder = folder
        self.runs = run_rows(table)


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    workers: int = 0,
    ray: str | None = None,
    processes: bool = False,
    controller: str | None = None,
    tls: str | Path | None = None,
    retry: bool = True,
    quiet: bool = True,
) -> SweepRows:
    """Run what is missing of a sweep and return its table, like `hansa sweep`.

    `source` is a sweep file, or what such a file says. Runs are simulations, in this process, in some
    `workers` or on a Ray cluster (`ray`); with `processes` real federations on this machine; with
    `controller` (HOST:PORT, and the folder of certificates `tls`) jobs of a standing controller. Runs that
    failed have no values; `runs` of the result says why.
    """
    where = Path(source) if isinstance(source, str | Path) else source
    fleet = Endpoint(controller, Path(tls) if tls else None) if controller else None
    runner = Choice(workers, ray, processes, fleet).runner()
    plan = make_plan(where, runner.way)
    folder = folder_of(plan, Path(out) if out else None)
    return SweepRows(run_sweep(plan, folder, runner, retry, quiet), folder)


def folder_of(plan: Plan, out: Path | None) -> Path:
    """Return the folder of a sweep's results; the same command finds it again."""
    return (out or SWEEPS / plan.spec.name).absolute()


def run_sweep(plan: Plan, folder: Path, runner: Runner, retry: bool, quiet: bool) -> Table:
    """Run what is missing, and return the table of what there is then; sweep.json is written in any case."""
    driver = Driver(plan, folder, retry)
    with claimed(folder):
        results = driver.results()
        due = driver.due(results)
        try:
            if due:
                runner.prepare()
                with progress(plan.spec, len(results), len(results) - len(due), quiet) as shown:
                    driver.run(due, runner, shown)
        finally:
            table = Table(plan, driver.results())
            write_summary(table, folder)
    return table


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table without nesting; None is what does not exist."""
    flat: dict[str, Any] = dict(row["combination"])
    flat |= {name: row[name] for name in ("baseline", "runs", "completed", "failed", "missing")}
    for metric, cells in row["metrics"].items():
        for name, cell in cells.items():
            of, margin = cell or {}, (cell or {}).get("margin") or {}
            flat[f"{metric}_{name}"] = of.get("mean")
            flat[f"{metric}_{name}_deviation"] = of.get("deviation")
            flat[f"{metric}_{name}_n"] = of.get("n", 0)
            flat |= {f"{metric}_{name}_margin": margin.get("mean"), f"{metric}_{name}_p": margin.get("p")}
            flat[f"{metric}_{name}_margin_least"] = margin.get("least")
            flat[f"{metric}_{name}_margin_most"] = margin.get("most")
    return flat
