"""The results of runs: each run's versions with their metrics, and what is measured of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from hansa.common.report.material import REPORT
from hansa.common.run.trial import Report
from hansa.simulation.sweep.file import SweepSpec, Target
from hansa.simulation.sweep.plan import Run
from hansa.simulation.sweep.records import read_record

MEASURES = ("final", "best", "mean", "last", "spread", "rounds_to_target", "bytes_to_target")
TESTED = "_test"  # ends the names of metrics of sites that are held out for testing
EITHER = " or "
USUAL = ("accuracy_test", "accuracy", "loss_test", "loss")  # the first of them that there is is compared
Status = Literal["completed", "failed", "missing"]


@dataclass(frozen=True)
class VersionRow:
    """One community model of a run."""

    version: int
    round: int
    seconds: float
    bytes_up: int  # of all versions up to this one
    bytes_down: int
    examples: int
    metrics: dict[str, float]  # none if they do not cover enough examples to count
    digest: str


@dataclass(frozen=True)
class Result:
    """How a run ended, and its versions if it completed."""

    run: Run
    status: Status
    reason: str = ""
    hansa: str = ""  # the version that ran it
    started: str = ""
    seconds: float = 0.0
    job: str = ""
    versions: tuple[VersionRow, ...] = ()


def read_result(run: Run, folder: Path, metrics: Sequence[str] = ()) -> Result:
    """Return a run's result from its folder; see `versions_of`."""
    record = read_record(folder)
    if record is None or record.digest != run.digest or record.status == "running":
        return Result(run, "missing")
    known = Result(
        run, record.status, record.reason, record.hansa, record.started, record.seconds, record.job
    )
    if record.status == "failed":
        return known
    try:
        report: Report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        return replace(known, versions=versions_of(report, metrics), job=str(report.get("job", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return Result(run, "missing")  # its files were damaged or removed


def versions_of(report: Report, metrics: Sequence[str] = ()) -> tuple[VersionRow, ...]:
    """Return the versions of a report, with bytes added up.

    A metric named `a or b` is the first of both that a version has: Ditto's sites have models of their own
    (`accuracy_personal or accuracy`), and are compared with others who use the community's.
    """
    either = [name for name in metrics if EITHER in name]
    history: list[dict[str, Any]] = report["history"]
    up = accumulate(entry["bytes_up"] for entry in history)
    down = accumulate(entry["bytes_down"] for entry in history)
    return tuple(
        VersionRow(
            version=entry["version"],
            round=entry["round"],
            seconds=entry["seconds"],
            bytes_up=sent_up,
            bytes_down=sent_down,
            examples=entry["examples"],
            metrics=_with_either(_counting(entry), either),
            digest=entry["digest"],
        )
        for entry, sent_up, sent_down in zip(history, up, down, strict=True)
    )


def _counting(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a version that count; those of test sites have names of their own."""
    metrics = dict(entry["metrics"]) if entry["covered"] else {}
    tested = entry.get("test")
    if tested and tested["examples"] == tested["examples_total"]:
        metrics |= {f"{name}{TESTED}": value for name, value in tested["metrics"].items()}
    metrics |= _of_sites([update.get("metrics", {}) for update in entry.get("updates", ())])
    return {name: value for name, value in metrics.items() if value is not None}


def _with_either(metrics: dict[str, float], names: Sequence[str]) -> dict[str, float]:
    for name in names:
        first = next((each for each in name.split(EITHER) if each in metrics), None)
        metrics |= {name: metrics[first]} if first else {}
    return metrics


def _of_sites(reports: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean and the largest of what all sites of a version report while they train."""
    metrics: dict[str, float] = {}
    for name in reports[0] if reports else ():
        values = [value for report in reports if (value := report.get(name)) is not None]
        if len(values) == len(reports):
            metrics |= {f"{name}_mean_of_sites": fmean(values), f"{name}_most_of_sites": max(values)}
    return metrics


def is_loss(metric: str, spec: SweepSpec) -> bool:
    """Whether less of a metric is better."""
    return metric in spec.minimise or "loss" in metric


def metrics_of(spec: SweepSpec, results: Sequence[Result]) -> tuple[str, ...]:
    """Return the metrics that a sweep compares: the file's, or else accuracy, or loss where there is none."""
    if spec.metrics:
        return spec.metrics
    measured = {name for result in results for version in result.versions for name in version.metrics}
    return next(((name,) for name in USUAL if name in measured), tuple(sorted(measured)[:1]))


def measure(result: Result, metric: str, spec: SweepSpec, target: Target | None) -> dict[str, float | None]:
    """Return what is measured of a run's metric; None is what does not exist, and is never a number."""
    curve = [version for version in result.versions if metric in version.metrics]
    values = [version.metrics[metric] for version in curve]
    reached = _first_to_reach(curve, metric, target, spec) if target else None
    chosen = _chosen(curve, spec.select or metric.removesuffix(TESTED), metric, spec)
    half = values[len(values) // 2 :]
    return {
        "final": values[-1] if values else None,
        "best": chosen.metrics[metric] if chosen else None,
        "mean": fmean(values) if values else None,
        "last": fmean(values[-spec.last :]) if values else None,
        "spread": stdev(half) if len(half) > 1 else None,
        "rounds_to_target": reached.round if reached else None,
        "bytes_to_target": reached.bytes_up + reached.bytes_down if reached else None,
    }


def _chosen(curve: Sequence[VersionRow], select: str, metric: str, spec: SweepSpec) -> VersionRow | None:
    """Return the version that is best on validation data, the earliest of equals; None without such data.

    A metric cannot choose the version that it is reported for: that would be the best by luck.
    """
    validated = [version for version in curve if select in version.metrics]
    if not validated or select == metric:
        return None
    sign = 1 if is_loss(select, spec) else -1
    return min(validated, key=lambda version: sign * version.metrics[select])


def _first_to_reach(
    curve: Sequence[VersionRow], metric: str, target: Target, spec: SweepSpec
) -> VersionRow | None:
    """Return the first evaluated version that is as good as the target."""
    sign = 1 if is_loss(metric, spec) else -1
    return next((v for v in curve if sign * v.metrics[metric] <= sign * target.value), None)


def target_for(metric: str, spec: SweepSpec, metrics: Sequence[str]) -> Target | None:
    """Return the sweep's target if it is one of this metric."""
    named = spec.target and (spec.target.metric or next(iter(metrics), ""))
    return spec.target if named == metric else None
