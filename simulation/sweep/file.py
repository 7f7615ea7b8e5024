"""The sweep file: a base job, what is varied, and how the results are compared."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from hansa.common.job.check import Lines, located, problems
from hansa.common.job.file import read_document
from hansa.common.job.spec import Problem
from hansa.common.values.bounds import Value
from hansa.common.values.documents import excess
from hansa.common.values.errors import InvalidJob
from hansa.common.values.ids import NAME

RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
MOST = 10_000  # values of one axis, and runs of a sweep
SEED, FOLD = (
    "seed",
    "data.holdout.fold",
)  # axes over which results are averaged unless the file says otherwise
Measure = Literal["final", "best", "mean", "last"]


class Target(Value):
    """A value of a metric; how many rounds and bytes it takes to reach it is counted."""

    metric: str = Field("", description="default: the first of `metrics`")
    value: float


class SweepSpec(Value):
    """What a sweep file says."""

    name: str = Field("", description="of the folder with the results; default: the file's name")
    title: str = Field("", description="above the table and the curves")
    base: Any = Field(description="a job file, from the sweep file's folder, or the job itself")
    set: Mapping[str, Any] = Field({}, description="changes to the base for all runs, by dotted path")
    axes: Mapping[str, Any] = Field({}, description="fields with their values, or names with changes")
    seeds: Any = Field(None, description="short for an axis `seed`, such as [1990, 1991] or 0..4")
    over: tuple[str, ...] = Field(
        (SEED, FOLD), description="axes that are repetitions: results are averaged over them, in pairs"
    )
    only: tuple[Mapping[str, Any], ...] = Field((), description="run these combinations and no others")
    exclude: tuple[Mapping[str, Any], ...] = Field((), description="do not run these combinations")
    baseline: Mapping[str, Any] | None = Field(
        None, description="what others are compared with; default: the first combination"
    )
    metrics: tuple[str, ...] = Field((), description="default: accuracy (of test sites, if any), or loss")
    minimise: tuple[str, ...] = Field(
        (), description="further metrics of which less is better, besides losses"
    )
    select: str | None = Field(
        None, description="a metric of validation data, by which `best` is chosen; default: that of `metrics`"
    )
    target: Target | None = None
    compare: Measure = Field("final", description="the measure whose margin the table shows")
    last: int = Field(5, ge=1, strict=True, description="evaluations at the end that `last` is the mean of")

    @field_validator("name")
    @classmethod
    def _name_is_a_name(cls, name: str) -> str:
        if name and not NAME.fullmatch(name):
            raise ValueError("use up to 64 letters, digits, '.', '_' and '-'")
        return name

    @field_validator("base")
    @classmethod
    def _base_is_a_file_or_a_job(cls, base: Any) -> Any:
        if not isinstance(base, str | Mapping) or not base:
            raise ValueError("name a job file, such as base: job.yaml, or write the job's fields below it")
        return base

    @field_validator("seeds")
    @classmethod
    def _seeds_are_whole_numbers(cls, seeds: Any) -> Any:
        if seeds is None:
            return None
        if type(seeds) is int:
            raise ValueError(f"write [{seeds}] for one seed, or 0..{max(seeds - 1, 1)} for several")
        values = expanded(seeds if isinstance(seeds, list) else [seeds])
        if not values or not all(type(value) is int for value in values):
            raise ValueError(
                "should be a list of whole numbers, such as [1990, 1991], or a range such as 0..4"
            )
        return values

    @field_validator("target", mode="before")
    @classmethod
    def _a_number_is_the_value(cls, target: Any) -> Any:
        return {"value": target} if isinstance(target, int | float) else target

    @model_validator(mode="after")
    def _seeds_or_axis(self) -> "SweepSpec":
        if self.seeds is not None and SEED in self.axes:
            raise ValueError("seeds is short for the axis seed: give one of them")
        return self


def expanded(values: list[Any]) -> list[Any]:
    """Return values with each range, such as `0..4`, written out."""
    whole: list[Any] = []
    for value in values:
        ends = RANGE.fullmatch(value) if isinstance(value, str) else None
        if ends is None:
            whole.append(value)
            continue
        first, last = int(ends[1]), int(ends[2])
        if not first <= last < first + MOST:
            raise ValueError(f"{value}: a range goes upwards, and over at most {MOST} numbers")
        whole += range(first, last + 1)
    return whole


def read_sweep(source: Path | Mapping[str, Any]) -> tuple[SweepSpec, "Complaints"]:
    """Read a sweep file, or take the same as a document; return it with a place for complaints about it."""
    if isinstance(source, Path):
        data, lines = read_document(source)
        complaints = Complaints(lines, str(source))
        default = {"name": re.sub(r"[^A-Za-z0-9._-]", "-", source.stem)[:64]}
    else:
        data, complaints, default = dict(source), Complaints({}, "the sweep"), {"name": "sweep"}
    if not isinstance(data, dict):
        raise InvalidJob(f"{complaints.source}: expected a mapping of fields such as base, axes and seeds")
    if beyond := excess(data):
        complaints.add(*beyond)
        complaints.end()
    try:
        spec = SweepSpec.model_validate(data)
    except ValidationError as error:
        for problem in problems(error, SweepSpec):
            complaints.add(*problem)
        complaints.end()
        raise
    return (spec if spec.name else spec.model_copy(update=default)), complaints


class Complaints:
    """What is wrong with a sweep, field by field; everything is reported together."""

    def __init__(self, lines: Lines, source: str) -> None:
        self.source = source
        self._lines = lines
        self._problems: list[Problem] = []

    def add(self, path: tuple[Any, ...], text: str) -> None:
        """Note what is wrong with a field."""
        self._problems.append((path, text))

    def end(self) -> None:
        """Raise InvalidJob if anything is wrong."""
        if self._problems:
            raise InvalidJob([located(problem, self._lines, self.source) for problem in self._problems])
