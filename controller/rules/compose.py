"""From a job's words to plugins: the rule's parts, overridden by the job's."""

from typing import Any

import hansa.controller.rules  # noqa: F401 - registers the built-in rules
from hansa.common.errors import InvalidJob
from hansa.common.job import JobSpec, located, part_faults
from hansa.common.plugins import POINTS, fill, rules
from hansa.controller.engine.composition import Composition


def compose(spec: JobSpec) -> Composition:
    """Return the job's composition or raise InvalidJob naming everything that is wrong."""
    faults = part_faults(spec.model_dump(), final=True)
    if faults:
        raise InvalidJob([located(fault, {}) for fault in faults])
    rule = rules()[spec.rule]
    parts: dict[str, Any] = {point: fill(point, rule, spec.part(point)) for point in POINTS}
    return Composition(name=spec.rule, **parts)
