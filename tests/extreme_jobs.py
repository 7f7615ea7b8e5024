"""Random jobs with extreme values for every field: `Extremes(seed).job()` returns a document for Submit.

Each is an ordinary job in which a few fields hold a value from the edges: the bounds of the field and just
beyond them, the edges of 32 and 64 bits, numbers that are not finite, long and broken texts, nested lists.
Rules, kinds of parts and their parameters are those that are registered, so that a new one takes part without
being named here.
"""

import math
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types as at
from pydantic.fields import FieldInfo

from hansa.common.job.check import parse_job
from hansa.common.job.spec import JobSpec
from hansa.common.plugins import registry as plugins
from hansa.common.values.bounds import Value
from hansa.common.values.errors import InvalidJob
from hansa.controller.rulebook.compose import compose

EDGES = (0, 1, 2, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 1 << 64)
WHOLE: list[int] = sorted(
    {sign * edge + step for edge in EDGES for sign in (1, -1) for step in (-1, 0, 1)} | {10**30, -(10**300)}
)
FLOATS = (
    *(0.0, -0.0, 5e-324, 1e-308, 1e-9, 0.5, 1.0, 1.0 + 2**-52, 1e12, 1e18, 1e300, 1.7976931348623157e308),
    *(-5e-324, -1.0, -1e308, math.inf, -math.inf, math.nan),
)
TEXTS = (
    "",
    " ",
    "x",
    "x" * 900_000,
    "\ud800",
    "\udfffx",
    "\x00",
    "\x1b[2J",
    "../../etc",
    "é" * 64,
    "nul\n",
    "a" * 1000,
)
ODD: tuple[Any, ...] = (None, True, [], {}, "1", 1, 1.5, [1], {"kind": "x"})
PARTS = ("pace", "sample", "local", "layers", "transfer", "weigh", "merge", "server", "evaluate")


def nested(depth: int, of: str = "list") -> Any:
    """Return nested lists or sections."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if of == "list" else {"a": value}
    return value


class Extremes:
    """A seeded source of such jobs."""

    def __init__(self, seed: int, app: str) -> None:
        self._chance = random.Random(seed)
        self._app = app

    def job(self) -> dict[str, Any]:
        """Return the next job; every second one is sure to be accepted, because most random ones are not."""
        document = self._draw()
        if self._chance.random() < 0.5:
            while not acceptable(document):
                document = self._draw()
        return document

    def _draw(self) -> dict[str, Any]:
        chance = self._chance
        document: dict[str, Any] = {
            "name": "extreme",
            "app": self._app,
            "rule": chance.choice(sorted(plugins.rules())),
            "train": {"batch_size": 16, "optimizer": {"lr": 0.1}},
            "validation": {"fraction": 0.2},
            "sites": {"min": 2, "wait": 5},
        }
        if chance.random() < 0.7:
            point = chance.choice(PARTS)
            document[point] = {"kind": chance.choice(sorted(plugins.kinds(point)))}
        for _ in range(chance.choice((1, 1, 2, 3))):
            path, field = chance.choice(list(self._fields(document)))
            self._put(document, path, self._value(field))
        return document

    def _fields(self, document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
        """Yield every field of a job, including those of the parts of its rule."""
        yield from _leaves(JobSpec, ())
        rule = plugins.rules().get(str(document["rule"]))
        for point in PARTS:
            given = document.get(point)
            kind = (
                given["kind"]
                if isinstance(given, dict) and "kind" in given
                else rule and rule.part(point)["kind"]
            )
            cls = plugins.kinds(point).get(str(kind))
            if cls:
                yield from (
                    (((point, field.alias or name)), field) for name, field in cls.model_fields.items()
                )

    def _put(self, document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
        for step in path[:-1]:
            inner = document.get(step)
            document[step] = document = inner if isinstance(inner, dict) else {}
        document[path[-1]] = value

    def _value(self, field: FieldInfo) -> Any:
        chance = self._chance
        kinds = _kinds(field.annotation)
        kind = chance.choice(kinds)
        if chance.random() < 0.1:
            return chance.choice(
                (*ODD, nested(chance.choice((3, 19, 25, 150, 900)), chance.choice(("list", "map"))))
            )
        if kind is int or kind is float:
            edges = _bounds(field)
            if not edges or chance.random() < 0.3:
                return chance.choice(WHOLE if kind is int else FLOATS)
            edge = chance.choice(edges)
            near = (
                (edge - 1, edge, edge + 1, edge // 2)
                if kind is int
                else (edge, edge * (1 - 1e-15), edge + 5e-324)
            )
            return chance.choice(near)
        if kind is bool:
            return chance.choice((True, False))
        if kind is str:
            return chance.choice(TEXTS)
        if kind is tuple:
            return [chance.choice(TEXTS) for _ in range(chance.choice((0, 1, 3, 1000)))]
        if kind is dict:
            key = chance.choice((*TEXTS, "kind", "sizes", "g"))
            return {key: chance.choice((nested(chance.choice((1, 30, 500)), "map"), *TEXTS, *WHOLE, *FLOATS))}
        return kind  # a choice of a Literal, or none


def acceptable(document: dict[str, Any]) -> bool:
    """Whether a controller accepts a job."""
    try:
        compose(parse_job(document))
    except InvalidJob:
        return False
    return True


def _leaves(model: type[Value], within: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = next(
            (
                kind
                for kind in _options(field.annotation)
                if isinstance(kind, type) and issubclass(kind, Value)
            ),
            None,
        )
        if inner is None:
            yield (*within, field.alias or name), field
        else:
            yield from _leaves(inner, (*within, name))


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _kinds(annotation: Any) -> list[Any]:
    """Return the types of a field's values; a Literal stands for its choices, None for itself."""
    found: list[Any] = []
    for option in _options(annotation):
        origin = get_origin(option) or option
        if origin is Literal:
            found += get_args(option)
        elif origin is types.NoneType:
            found.append(None)
        else:
            found.append(origin if origin in (int, float, bool, str, tuple) else dict)
    return found


def _bounds(field: FieldInfo) -> list[Any]:
    found: list[Any] = []
    for each in field.metadata:
        for kind, name in ((at.Ge, "ge"), (at.Gt, "gt"), (at.Le, "le"), (at.Lt, "lt")):
            if isinstance(each, kind):
                found.append(getattr(each, name))
    return found
