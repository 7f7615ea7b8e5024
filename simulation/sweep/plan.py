"""The plan of a sweep: every run with its job, checked before anything is run."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from blake3 import blake3

from hansa.common.data.partition import parse_partition
from hansa.common.job.check import Lines, part_faults
from hansa.common.job.file import check_job, read_job, set_field
from hansa.common.job.spec import JobSpec
from hansa.common.run.site_data import located
from hansa.common.site.source import source_of
from hansa.common.values.errors import HansaError, InvalidJob
from hansa.common.values.wording.words import counted
from hansa.controller.rulebook.resolve import resolved
from hansa.simulation.sweep.axes import Axis, Combination, Point, read_axes, read_baseline, read_combinations
from hansa.simulation.sweep.file import Complaints, SweepSpec, read_sweep
from hansa.simulation.sweep.names import folder_name, job_name

DATA = "data"


@dataclass(frozen=True)
class Way:
    """How jobs are run. Results of different ways are never mixed."""

    name: str
    here: bool = True  # on this machine, on data that the job names
    ignored: Mapping[str, str] = field(default_factory=dict)  # sections of a job that it ignores, and why


@dataclass(frozen=True)
class Run:
    """One job of a sweep."""

    points: Combination
    spec: JobSpec
    digest: str  # of everything that decides what it computes

    @property
    def labels(self) -> tuple[str, ...]:
        """Its value on each axis, which no other run of the sweep has."""
        return tuple(point.label for point in self.points.values())

    @property
    def title(self) -> str:
        """What people read."""
        return title_of(self.points)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.points, self.digest)


@dataclass(frozen=True)
class Plan:
    """What a sweep runs, and what is compared with what."""

    spec: SweepSpec
    axes: tuple[Axis, ...]
    runs: tuple[Run, ...]
    baseline: Mapping[str, Point]
    way: Way

    @cached_property
    def varied(self) -> tuple[Axis, ...]:
        """The axes whose values are compared."""
        return tuple(axis for axis in self.axes if axis.name not in self.spec.over)

    @cached_property
    def repeated(self) -> tuple[Axis, ...]:
        """The axes over which results are averaged."""
        return tuple(axis for axis in self.axes if axis.name in self.spec.over)

    def rows(self) -> dict[tuple[str, ...], list[Run]]:
        """Return the runs of each combination apart from repetitions, in the order of the file."""
        rows: dict[tuple[str, ...], list[Run]] = {}
        for run in self.runs:
            rows.setdefault(tuple(run.points[axis.name].label for axis in self.varied), []).append(run)
        order = {axis.name: [point.label for point in axis.points] for axis in self.varied}
        places = {
            row: [order[axis.name].index(label) for axis, label in zip(self.varied, row, strict=True)]
            for row in rows
        }
        return {row: rows[row] for row in sorted(rows, key=lambda row: places[row])}

    def compared_with(self, row: tuple[str, ...]) -> tuple[str, ...]:
        """Return the row that a row is compared with; itself if it is the baseline."""
        return tuple(
            self.baseline[axis.name].label if axis.name in self.baseline else label
            for axis, label in zip(self.varied, row, strict=True)
        )

    def repetition(self, run: Run) -> tuple[str, ...]:
        """Return what a run must have in common with the run that it is compared with."""
        return tuple(run.points[axis.name].label for axis in self.repeated)


def title_of(points: Combination) -> str:
    """Return a combination as people read it."""
    return ", ".join(f"{name}={point.label}" for name, point in points.items()) or "the job itself"


def make_plan(source: Path | Mapping[str, Any], way: Way) -> Plan:
    """Read a sweep and check all its jobs."""
    spec, complaints = read_sweep(source)
    axes = read_axes(spec, complaints, way.here)
    _refuse_ignored(axes, way, complaints)
    chosen = read_combinations(spec, axes, complaints)
    compared = read_baseline(spec, axes, complaints)
    complaints.end()
    jobs = _Jobs(spec, source if isinstance(source, Path) else None, way)
    runs = _checked(chosen, jobs, complaints.source)
    plan = Plan(spec, tuple(axes), tuple(runs), compared, way)
    if len(plan.varied) and not any(plan.compared_with(row) in plan.rows() for row in plan.rows()):
        named = title_of(compared)
        raise InvalidJob(f"{complaints.source}: baseline: {named} is not among the combinations that are run")
    return plan


def _refuse_ignored(axes: Sequence[Axis], way: Way, complaints: Complaints) -> None:
    """Refuse to vary what makes no difference."""
    for axis in axes:
        sections = {key.partition(".")[0] for point in axis.points for key in point.changes}
        for section in sorted(sections & way.ignored.keys()):
            why = f"it changes `{section}`, which makes no difference here: {way.ignored[section]}"
            complaints.add(("axes", axis.name), why)


def _checked(chosen: Sequence[Combination], jobs: "_Jobs", source: str) -> list[Run]:
    """Return the runs, or name every combination that is not a valid job; the same fault is named once."""
    runs: list[Run] = []
    faults: dict[str, list[Combination]] = {}
    for points in chosen:
        try:
            runs.append(jobs.run(points))
        except HansaError as error:
            for line in str(error).split("\n"):
                faults.setdefault(line, []).append(points)
    if faults:
        raise InvalidJob(
            [
                f"{source}: {title_of(where[0])}{_more(len(where) - 1)}: {fault}"
                for fault, where in faults.items()
            ]
        )
    return runs


def _more(others: int) -> str:
    return f" and {counted(others, 'other run')}" if others else ""


class _Jobs:
    """Makes the job of each combination."""

    def __init__(self, spec: SweepSpec, file: Path | None, way: Way) -> None:
        self._spec, self._file, self._way = spec, file, way
        self._bases: dict[Path, tuple[object, Lines]] = {}
        self._sources: dict[str, str] = {}

    def run(self, points: Combination) -> Run:
        """Return a run; raise if its job is refused."""
        data, lines, path = self._base(points)
        if isinstance(data, dict):
            all_changes = [self._spec.set, *(point.changes for point in points.values())]
            changed = [(key, value) for changes in all_changes for key, value in changes.items()]
            for key, value in changed:
                set_field(data, key.split("."), deepcopy(value), key)
            lines = {place: line for place, line in lines.items() if not _touched(place, changed)}
            data["name"] = job_name(self._spec.name, points)
        spec = check_job(data, lines, path, self._way.here)
        if self._way.here:
            if spec.data is None:
                why = "is required to run jobs on this machine; it names the sites' data"
                raise InvalidJob(f"{path}: data: {why}, such as data: {{source: digits}}")
            parse_partition(spec.data.partition)
            spec = located(spec, path)
        return Run(points, spec, self._digest(spec))

    def _base(self, points: Combination) -> tuple[object, Lines, Path]:
        """Return a copy of the base job, with the lines of its fields and its file."""
        here = self._file or Path("sweep.yaml")
        named = next((point.base for point in points.values() if point.base), self._spec.base)
        if not isinstance(named, str):
            return deepcopy(dict(named)), {}, here
        path = here.parent / named
        if path not in self._bases:
            self._bases[path] = read_job(path)
        data, lines = self._bases[path]
        return deepcopy(data), lines, path

    def _digest(self, spec: JobSpec) -> str:
        """Return a digest of what decides a run: resolved job, app, first model, data, way of running."""
        known = not part_faults(spec.model_dump(), final=True)  # otherwise only the controller knows its rule
        job = dict(resolved(spec).job if known else spec.model_dump(mode="json"))
        app = str(job.pop("app"))
        if app not in self._sources:
            self._sources[app] = source_of(app).digest
        parts = {
            "job": {n: v for n, v in job.items() if n not in ("name", DATA, *self._way.ignored)},
            "app": [app.rpartition(":")[2], self._sources[app]],
            "models": [_digest_of(spec.init), _digest_of(spec.reference)],
            "data": _data(spec) if self._way.here else None,
            "way": self._way.name,
        }
        return blake3(json.dumps(_without_none(parts), sort_keys=True).encode()).hexdigest()


def _touched(place: tuple[Any, ...], changed: Sequence[tuple[str, Any]]) -> bool:
    """Whether the sweep has changed a field, so that its line in the job file means nothing."""
    return any(place[: key.count(".") + 1] == tuple(key.split(".")) for key, _ in changed)


def _digest_of(file: str | None) -> str:
    """Return the digest of a model that a job brings."""
    if not file:
        return ""
    try:
        return blake3(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidJob(f"{file}: cannot be read: {error.strerror}") from None


def _without_none(document: Any) -> Any:
    """Leave out fields that say nothing: a later Hansa may have more of them, and the job is the same."""
    if isinstance(document, dict):
        return {name: _without_none(value) for name, value in document.items() if value is not None}
    return [_without_none(value) for value in document] if isinstance(document, list) else document


def _data(spec: JobSpec) -> dict[str, Any]:
    assert spec.data is not None
    data = spec.data.model_dump(mode="json")
    if spec.data.source and Path(spec.data.source).exists():
        data["source"] = str(Path(spec.data.source).resolve())
    if spec.data.files:
        data["files"] = {site: str(Path(file).resolve()) for site, file in spec.data.files.items()}
    return data
