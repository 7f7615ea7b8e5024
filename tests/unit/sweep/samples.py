"""Small sweeps for tests, and a runner that computes nothing."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.common.job.spec import JobSpec
from hansa.common.report.material import REPORT
from hansa.common.run.trial import Report
from hansa.simulation.sweep.plan import Plan, Way, make_plan
from hansa.simulation.sweep.results import Result, VersionRow

WAY = Way("hand")
JOB: dict[str, Any] = {
    "app": "examples/digits/app.py:app",
    "pace": {"kind": "sync", "rounds": 3},
    "data": {"source": "digits", "sites": 2},
}


def plan_of(way: Way = WAY, **fields: Any) -> Plan:
    """Return the plan of a sweep over JOB."""
    return make_plan({"base": JOB} | fields, way)


def entry(version: int, **changes: Any) -> dict[str, Any]:
    """Return a version as reports have it."""
    usual = {
        "version": version,
        "round": version,
        "seconds": float(version),
        "metrics": {},
        "covered": True,
        "examples": 10,
        "bytes_up": 100 if version else 0,
        "bytes_down": 200 if version else 0,
        "digest": f"{version:064x}",
    }
    return usual | changes


def report_of(accuracies: Sequence[float | None]) -> Report:
    """Return the report of a job whose versions have these accuracies."""
    measured = [{} if value is None else {"accuracy": value, "loss": 1 - value} for value in accuracies]
    history = [entry(0, covered=False)]
    history += [entry(at, metrics=metrics) for at, metrics in enumerate(measured, 1)]
    return {"job": "j1", "history": history}


def result_of(
    plan: Plan, at: int, accuracies: Sequence[float], more: Mapping[str, Sequence[float]] | None = None
) -> Result:
    """Return the result of a plan's run with these accuracies, and other metrics."""
    metrics = {"accuracy": accuracies} | dict(more or {})
    versions = tuple(
        VersionRow(
            version=number + 1,
            round=number + 1,
            seconds=number + 1.0,
            bytes_up=100 * (number + 1),
            bytes_down=200 * (number + 1),
            examples=10,
            metrics={name: values[number] for name, values in metrics.items()},
            digest="",
        )
        for number in range(len(accuracies))
    )
    return Result(plan.runs[at], "completed", hansa="0", seconds=1.5, versions=versions)


class ByHand:
    """A runner whose reports a test writes itself."""

    way = WAY

    def __init__(self, answer: Callable[[JobSpec], Report]) -> None:
        self._answer = answer
        self.jobs: list[JobSpec] = []

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def run(self, spec: JobSpec, folder: Path) -> Report:
        """Write the test's report."""
        self.jobs.append(spec)
        report = self._answer(spec)
        (folder / REPORT).write_text(json.dumps(report))
        return report
