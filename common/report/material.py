"""What reports are made of: a job's view with its history, and what only its folder knows."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from hansa.common.values.errors import InvalidInput
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import shortfall_lines
from hansa.common.values.wording.words import cleaned, in_order

REPORT, RESOLVED, PAGE = "report.json", "job.resolved.yaml", "report.html"
OF_JOB, OF_VERSION = tuple(JobView.model_fields), tuple(VersionView.model_fields)


@dataclass(frozen=True)
class Material:
    """A job to report on."""

    view: JobView
    folder: str = ""  # of the run, if it was one
    data: JsonValue = None  # where the sites' data came from, if that is known here
    threads: int | None = None  # PyTorch's at each site
    simulation: Mapping[str, Any] = field(default_factory=dict)  # how it was simulated, if it was


def read_material(
    folder: Path, of_job: Collection[str] = OF_JOB, of_version: Collection[str] = OF_VERSION
) -> Material:
    """Read what `hansa run` or `hansa simulate` has left in a folder; of job and versions, some fields only.

    Who needs few fields can read reports that other versions of Hansa have written.
    """
    file = folder / REPORT
    try:
        report: Any = cleaned(json.loads(file.read_bytes()))  # anybody may have written it
        return material_of(report, str(folder), of_job, of_version)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput(f"{file}: not the report of a job; `hansa run` and `simulate` write it") from None


def material_of(
    report: Mapping[str, Any],
    folder: str,
    of_job: Collection[str] = OF_JOB,
    of_version: Collection[str] = OF_VERSION,
) -> Material:
    """Return the material in the contents of a report.json."""
    versions = [{name: entry[name] for name in of_version if name in entry} for entry in report["history"]]
    known = {name: report[name] for name in of_job if name in report}
    view = JobView.model_validate(known | {"history": versions})
    repeated = set(shortfall_lines(view))  # report.json has them among the warnings, too
    kept = tuple(warning for warning in view.warnings if warning not in repeated)
    view = view.model_copy(update={"warnings": kept})
    return Material(view, folder, report.get("data"), report.get("threads"), report.get("simulation") or {})


def sites_of(view: JobView) -> list[str]:
    """Return the sites that took part or were to take part, as people sort them."""
    names: set[str] = {each.site for each in view.shortfalls}
    for entry in view.history:
        names |= entry.sites.keys() | entry.lost.keys()
        for hop in entry.hops:
            names |= {*hop.sites, *hop.steps, *hop.lost}
    return sorted(names, key=in_order)


def measured(view: JobView) -> list[VersionView]:
    """Return the versions whose metrics cover enough examples to count."""
    return [entry for entry in view.history if entry.covered and entry.metrics]


def in_rounds(view: JobView) -> bool:
    """Whether the job has rounds, and not one version for each update."""
    return view.unit == "round"
