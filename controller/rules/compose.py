"""From a job's words to plugins: the rule's parts, overridden by the job's, checked before any site works."""

from typing import Any

from pydantic import ValidationError

import hansa.controller.rules  # noqa: F401 - registers the built-in rules
from hansa.common.errors import InvalidJob
from hansa.common.job import JobSpec, problems
from hansa.common.plugins import POINTS, Plugin, Rule, kinds, rules, suggestion
from hansa.controller.engine.parts import Composition


def compose(spec: JobSpec) -> Composition:
    """Return the job's composition or raise InvalidJob naming everything that is wrong."""
    known = rules()
    if spec.rule not in known:
        raise InvalidJob(f"rule: there is no rule {spec.rule!r}" + suggestion(spec.rule, list(known)))
    faults: list[str] = []
    parts: dict[str, Any] = {}
    for point in POINTS:
        try:
            parts[point] = _plugin(point, known[spec.rule], spec.part(point))
        except InvalidJob as error:
            faults += error.problems
    if faults:
        raise InvalidJob(faults)
    return Composition(name=spec.rule, **parts)


def _plugin(point: str, rule: Rule, given: Any) -> Plugin:
    start = dict(rule.parts[point])
    said = dict(given or {})
    kind = said.pop("kind", start["kind"])
    available = kinds(point)
    if kind not in available:
        raise InvalidJob(f"{point}.kind: there is no {kind!r}" + suggestion(str(kind), list(available)))
    base = {name: value for name, value in start.items() if name != "kind"} if kind == start["kind"] else {}
    try:
        return available[kind].model_validate(base | said)
    except ValidationError as error:
        raise InvalidJob(problems(error, available[kind], {}, within=point)) from None
