"""From a job's words to plugins: the rule's parts, overridden by the job's."""

from typing import Any

import hansa.controller.rules  # noqa: F401 - registers the built-in rules
from hansa.common.job.check import located, part_faults
from hansa.common.job.spec import JobSpec, Problem, UntilSpec
from hansa.common.plugins.registry import POINTS, Rule, fill, rules
from hansa.common.values.errors import InvalidJob
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Policy
from hansa.controller.rules.adaptive import Until
from hansa.controller.rules.fedavg import ByExamples
from hansa.controller.rules.fedmmb import ByUsed, Window

POLICIES = ("local", "layers")  # points whose plugins shape training tasks


def compose(spec: JobSpec) -> Composition:
    """Return the job's composition or raise InvalidJob naming everything that is wrong."""
    rule = composed_again(spec)
    _require_none(rule.objections(spec))
    return rule


def composed_again(spec: JobSpec) -> Composition:
    """Return the composition of a job that was accepted: what would speak against it now did not then."""
    _require_none(part_faults(spec.model_dump(), final=True))
    return _filled(spec)


def objections(spec: JobSpec) -> list[Problem]:
    """Return which parts of a job do not go together, and why (methods/README §6)."""
    return _filled(spec).objections(spec)


def _require_none(faults: list[Problem]) -> None:
    if faults:
        raise InvalidJob([located(fault, {}) for fault in faults])


def _filled(spec: JobSpec) -> Composition:
    rule = rules()[spec.rule]
    parts: dict[str, Any] = {point: fill(point, rule, spec.part(point)) for point in POINTS}
    window = _window(spec, rule)
    if window and isinstance(parts["weigh"], ByExamples) and "kind" not in (spec.weigh or {}):
        parts["weigh"] = ByUsed()  # a rule that weighs by examples means those that an update was trained on
    policies = {point: parts.pop(point) for point in POLICIES} | _until(spec, rule) | window
    epochs = 1 if window else spec.train.epochs or rule.epochs
    return Composition(name=spec.rule, epochs=epochs, policies=policies, **parts)


def _until(spec: JobSpec, rule: Rule) -> dict[str, Policy]:
    """Return what decides when learners have trained enough, if the job's epochs do not."""
    until = spec.train.until or (UntilSpec() if rule.adaptive else None)
    return {Until.point: Until(until=until)} if until else {}


def _window(spec: JobSpec, rule: Rule) -> dict[str, Policy]:
    """Return what makes each task a window of batches, if tasks do not have epochs."""
    batches = spec.train.batches or rule.batches
    return {Window.point: Window(batches=batches)} if batches else {}
