"""From a job's words to plugins: the rule's parts, overridden by the job's."""

from typing import Any

import hansa.controller.rules  # noqa: F401 - registers the built-in rules
from hansa.common.errors import InvalidJob
from hansa.common.job import JobSpec, UntilSpec, located, part_faults
from hansa.common.plugins import POINTS, Rule, fill, rules
from hansa.controller.engine.parts import Composition, Policy
from hansa.controller.rules.adaptive import Until


def compose(spec: JobSpec) -> Composition:
    """Return the job's composition or raise InvalidJob naming everything that is wrong."""
    faults = part_faults(spec.model_dump(), final=True)
    if faults:
        raise InvalidJob([located(fault, {}) for fault in faults])
    rule = rules()[spec.rule]
    parts: dict[str, Any] = {point: fill(point, rule, spec.part(point)) for point in POINTS}
    composed = Composition(name=spec.rule, policies=_policies(spec, rule), **parts)
    objections = [objection for part in composed.parts.values() for objection in part.objections(spec, composed)]
    if objections:
        raise InvalidJob([located(objection, {}) for objection in objections])
    return composed


def _policies(spec: JobSpec, rule: Rule) -> dict[str, Policy]:
    """Return what shapes training tasks beyond the job's own words."""
    until = spec.train.until or (UntilSpec() if rule.adaptive else None)
    return {Until.point: Until(until=until)} if until else {}
