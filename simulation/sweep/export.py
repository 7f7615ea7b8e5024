"""Results of a sweep for programs: sweep.json, and tables with a row for each run and for each version."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hansa import __version__
from hansa.common.client.rows import Rows, write_rows
from hansa.common.process.files import write_whole
from hansa.common.report.material import PAGE
from hansa.common.report.sweep import SWEEP, Sweep, sweep_page
from hansa.common.values.documents import written
from hansa.simulation.sweep.curves import about_curves, panels_of
from hansa.simulation.sweep.results import Result, is_loss
from hansa.simulation.sweep.show import cells, remarks
from hansa.simulation.sweep.statistics import TEST
from hansa.simulation.sweep.table import Table


def document(table: Table, with_versions: bool) -> dict[str, Any]:
    """Return everything that is known about a sweep, for programs."""
    plan = table.plan
    return {
        "sweep": plan.spec.name,
        "title": plan.spec.title,
        "hansa": __version__,
        "way": plan.way.name,
        "axes": {axis.name: [point.label for point in axis.points] for axis in plan.axes},
        "over": [axis.name for axis in plan.repeated],
        "baseline": {name: point.label for name, point in plan.baseline.items()},
        "metrics": list(table.metrics),
        "minimised": [metric for metric in table.metrics if is_loss(metric, plan.spec)],
        "compare": plan.spec.compare,
        "target": plan.spec.target.model_dump() if plan.spec.target else None,
        "test": TEST,
        "about": about_curves(table),
        "tables": _printed(table),
        "remarks": list(remarks(table)),
        "rows": table.documents(),
        "curves": [panel.model_dump() for panel in panels_of(table)] if with_versions else [],
        "runs": [_run(table, result, with_versions) for result in table.results],
    }


def _printed(table: Table) -> list[dict[str, Any]]:
    """Return the tables as they are printed, for people who read them elsewhere."""
    printed = []
    for metric in table.metrics:
        columns, rows = cells(table, metric)
        printed.append({"metric": metric, "columns": columns, "rows": rows})
    return printed


def _run(table: Table, result: Result, with_versions: bool) -> dict[str, Any]:
    run = result.run
    more = {"versions": [asdict(version) for version in result.versions]} if with_versions else {}
    return {
        "combination": {name: point.value for name, point in run.points.items()},
        "status": result.status,
        "reason": result.reason,
        "folder": f"runs/{run.folder}",
        "digest": run.digest,
        "job": result.job,
        "hansa": result.hansa,
        "started": result.started,
        "seconds": result.seconds,
        "measures": table.measures(result),
        **more,
    }


def write_summary(table: Table, folder: Path) -> None:
    """Write sweep.json, and the same as a page."""
    said = document(table, with_versions=True)
    page = sweep_page(Sweep.model_validate(said))
    for name, text in ((SWEEP, f"{written(said)}\n"), (PAGE, page)):
        write_whole(folder / name, text.encode(), 0o644, durable=False)


def run_rows(table: Table) -> Rows:
    """Return one flat row for each run; None is what does not exist."""
    rows = Rows()
    for result in table.results:
        last = result.versions[-1] if result.versions else None
        row: dict[str, Any] = _labels(result) | {"status": result.status, "reason": result.reason}
        for metric, measures in table.measures(result).items():
            row |= {f"{metric}_{name}": value for name, value in measures.items()}
        row |= {
            "rounds": last.round if last else None,
            "bytes_up": last.bytes_up if last else None,
            "bytes_down": last.bytes_down if last else None,
            "seconds": result.seconds if result.status != "missing" else None,
            "folder": f"runs/{result.run.folder}",
        }
        rows.append(row)
    return rows


def version_rows(table: Table) -> Rows:
    """Return one flat row for each version of each run, with all its metrics."""
    versions = [version for result in table.results for version in result.versions]
    metrics = sorted({name for version in versions for name in version.metrics})
    rows = Rows()
    for result in table.results:
        for version in result.versions:
            row = _labels(result) | asdict(version)
            del row["metrics"]
            rows.append(row | {name: version.metrics.get(name) for name in metrics})
    return rows


def _labels(result: Result) -> dict[str, Any]:
    return {name: point.value for name, point in result.run.points.items()}


def versions_file(path: Path) -> Path:
    """Return the file of the versions, beside that of the runs."""
    return path.with_name(f"{path.stem}-versions{path.suffix}")


def write_table(table: Table, path: Path) -> None:
    """Write one file with a row for each run, and one beside it with a row for each version."""
    write_rows(run_rows(table), path)
    write_rows(version_rows(table), versions_file(path))
