"""Axes: what is varied, the values of each, and which combinations of them are run."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hansa.common.values.wording.words import plain, suggestion
from hansa.simulation.sweep.fields import field_fault
from hansa.simulation.sweep.file import MOST, SEED, Complaints, SweepSpec, expanded

BASE = "base"  # a change of this name is another base job
Change = tuple[str, ...]  # the path of a field


@dataclass(frozen=True)
class Point:
    """One value of an axis: how tables show it, and what it changes in the job."""

    label: str
    value: object  # for programs: a number stays a number
    changes: Mapping[str, Any]
    base: str | None = None  # another job file to start from


@dataclass(frozen=True)
class Axis:
    """What is varied, with its values in the order of the file."""

    name: str
    points: tuple[Point, ...]

    def point(self, value: object) -> Point | None:
        """Return the point of a value or label, as `baseline`, `only` and `exclude` name it."""
        return next((point for point in self.points if point.label == label_of(value)), None)


Combination = Mapping[str, Point]  # by axis


def read_axes(spec: SweepSpec, complaints: Complaints, here: bool) -> list[Axis]:
    """Return the axes of a sweep, with what is wrong with them among the complaints."""
    for key in spec.set:
        _check_field(("set", key), key, complaints, here)
    axes = [_axis(name, values, complaints, here) for name, values in spec.axes.items()]
    if spec.seeds is not None:
        points = tuple(Point(str(seed), seed, {SEED: seed}) for seed in spec.seeds)
        axes.append(Axis(SEED, points))
    for axis in axes:
        often = Counter(point.label for point in axis.points)
        for label in (label for label, count in often.items() if count > 1):
            complaints.add(_place(axis), f"{label} is there twice")
    _check_overlaps(axes, complaints)
    for name in spec.over if "over" in spec.model_fields_set else ():
        if name not in [axis.name for axis in axes]:
            complaints.add(("over",), _no_axis(name, axes))
    return axes


def _axis(name: str, values: Any, complaints: Complaints, here: bool) -> Axis:
    place = ("axes", name)
    fault = field_fault(name, here)
    if isinstance(values, Mapping) and values:
        if not fault:
            complaints.add(
                place, "this is a field: give a list of values, or choose another name for the axis"
            )
        return Axis(name, tuple(_named(name, *item, complaints, here) for item in values.items()))
    try:
        whole = expanded(values if isinstance(values, list) else [values])
    except ValueError as error:
        complaints.add(place, str(error))
        return Axis(name, ())
    if fault:
        named = "; an axis that is not a field has names with changes, such as {a: {rule: fedavg}}"
        complaints.add(place, fault if "did you mean" in fault else fault + named)
    elif not isinstance(values, list | str) or not whole or len(whole) > MOST:
        complaints.add(place, f"should be a list of 1 to {MOST} values, or names with changes")
    return Axis(name, tuple(Point(label_of(value), _plain(value), {name: value}) for value in whole))


def _named(axis: str, label: Any, changes: Any, complaints: Complaints, here: bool) -> Point:
    """Return a point that sets several fields at once."""
    name, place = label_of(label), ("axes", axis, str(label))
    if not isinstance(changes, Mapping | None):
        complaints.add(place, "should be the changes of this name, such as {rule: fedavg, train.epochs: 5}")
        return Point(name, name, {})
    fields = {str(key): value for key, value in (changes or {}).items() if key != BASE}
    for key in fields:
        _check_field((*place, key), key, complaints, here)
    base = (changes or {}).get(BASE)
    if not isinstance(base, str | None):
        complaints.add((*place, BASE), "should be the name of a job file")
        base = None
    return Point(name, name, fields, base)


def _check_field(place: tuple[str, ...], key: str, complaints: Complaints, here: bool) -> None:
    if fault := field_fault(key, here):
        complaints.add(place, fault)


def _check_overlaps(axes: Sequence[Axis], complaints: Complaints) -> None:
    """Refuse axes of which a later one would undo what an earlier one sets."""
    earlier: dict[Change, str] = {}
    for axis in axes:
        own = {tuple(key.split(".")) for point in axis.points for key in point.changes}
        own |= {(BASE,) for point in axis.points if point.base}
        for change in sorted(own):
            for other, name in earlier.items():
                if other[: len(change)] == change:
                    complaints.add(_place(axis), f"it sets {'.'.join(change)}, and so does the axis {name}")
        earlier |= dict.fromkeys(own, axis.name)


def _place(axis: Axis) -> tuple[str, ...]:
    return ("axes", axis.name)


def _no_axis(name: str, axes: Sequence[Axis]) -> str:
    return f"there is no axis {plain(name)!r}" + suggestion(name, [axis.name for axis in axes])


def read_combinations(spec: SweepSpec, axes: Sequence[Axis], complaints: Complaints) -> list[Combination]:
    """Return what is run, one seed after another: half of the sweep can then be compared already."""
    wanted = [_pattern(("only", at), each, axes, complaints) for at, each in enumerate(spec.only)]
    unwanted = [_pattern(("exclude", at), each, axes, complaints) for at, each in enumerate(spec.exclude)]
    size = 1
    for axis in axes:
        size *= len(axis.points)
    if size > MOST:
        complaints.add(("axes",), f"{size} combinations are too many; at most {MOST} are allowed")
        return []
    repeated = [axis for axis in axes if axis.name in spec.over]
    order = [*repeated, *(axis for axis in axes if axis.name not in spec.over)]
    chosen: list[Combination] = []
    for points in product(*(axis.points for axis in order)):
        by_name = {axis.name: point for axis, point in zip(order, points, strict=True)}
        combination = {axis.name: by_name[axis.name] for axis in axes}
        if (not wanted or any(_fits(combination, each) for each in wanted)) and not any(
            _fits(combination, each) for each in unwanted
        ):
            chosen.append(combination)
    if not chosen and (wanted or unwanted):
        complaints.add(("only" if wanted else "exclude",), "no combination is left to run")
    return chosen


Pattern = Mapping[str, Sequence[Point]]  # the points that a combination may have


def _pattern(
    place: tuple[Any, ...], given: Mapping[str, Any], axes: Sequence[Axis], complaints: Complaints
) -> Pattern:
    values = {name: each if isinstance(each, list) else [each] for name, each in given.items()}
    return {
        name: list(_points((*place, name), name, each, axes, complaints)) for name, each in values.items()
    }


def _points(
    place: tuple[Any, ...], name: str, values: list[Any], axes: Sequence[Axis], complaints: Complaints
) -> Iterator[Point]:
    axis = next((axis for axis in axes if axis.name == name), None)
    if axis is None:
        complaints.add(place, _no_axis(name, axes))
        return
    try:
        values = expanded(values)
    except ValueError as error:
        complaints.add(place, str(error))
        return
    for value in values:
        point = axis.point(value)
        if point is None:
            known = suggestion(label_of(value), [each.label for each in axis.points])
            complaints.add(place, f"{label_of(value)} is not a value of this axis{known}")
        else:
            yield point


def _fits(combination: Combination, pattern: Pattern) -> bool:
    return all(combination[name] in points for name, points in pattern.items() if name in combination)


def read_baseline(spec: SweepSpec, axes: Sequence[Axis], complaints: Complaints) -> dict[str, Point]:
    """Return the values that others are compared with; an axis without one is compared like with like."""
    varied = [axis for axis in axes if axis.name not in spec.over and axis.points]
    if spec.baseline is None:
        return {axis.name: axis.points[0] for axis in varied}
    pattern = _pattern(("baseline",), spec.baseline, axes, complaints)
    for name, points in pattern.items():
        if name in spec.over:
            complaints.add(("baseline", name), "results are averaged over this axis, see `over`")
        elif len(points) > 1:
            complaints.add(("baseline", name), "name one value")
    return {name: points[0] for name, points in pattern.items() if points}


def label_of(value: object) -> str:
    """Return how a value is shown in tables."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {label_of(each)}" for key, each in value.items()) or "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(label_of, value))}]"
    return plain(value) if isinstance(value, str) else json.dumps(value)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str) or value is None else label_of(value)
