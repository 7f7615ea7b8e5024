"""Composes a job: the rule's parts, overridden by the job's."""

from typing import Any

from pydantic import ValidationError

import hansa.controller.rules  # noqa: F401 - registers the built-in rules
from hansa.common.job.check import located, part_faults, problems
from hansa.common.job.duration import duration_of, not_meant
from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.packages import plugin_packages
from hansa.common.plugins.registry import POINTS, TRAIN, Plugin, Rule, fill, kinds, rules
from hansa.common.values.errors import InvalidJob
from hansa.common.values.resolved import Software
from hansa.common.values.wording.words import listed
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.policies import Duration
from hansa.controller.rules.baselines.fedavg import ByExamples
from hansa.controller.rules.fedmmb import ByUsed


def compose(spec: JobSpec) -> Composition:
    """Return the job's composition, or raise InvalidJob naming everything that is wrong."""
    rule = composed_again(spec)
    _require_none([*rule.objections(spec), *_contradictions(spec, rule)])
    return rule


def composed_again(spec: JobSpec) -> Composition:
    """Return the composition of a job that was accepted before, without asking for objections again."""
    faults = part_faults(spec.model_dump(), final=True)
    missing = _missing_packages(spec.made_with) if faults and spec.made_with else []
    if missing:
        why = f"the job was run with {listed(missing)}, which is not installed here"
        raise InvalidJob(f"rule {spec.rule}: {why}; install the plugin package and try again")
    _require_none(faults)
    return _filled(spec)


def _missing_packages(software: Software) -> list[str]:
    """Return the packages that a job's parts came from and that are not installed here, or else all such."""
    used = {origin.package for origin in software.plugins.values()}
    missing = {name: version for name, version in software.packages.items() if name not in plugin_packages()}
    needed = missing.keys() & used or missing.keys()
    return [f"{name} {missing[name]}" for name in sorted(needed)]


def objections(spec: JobSpec) -> list[Problem]:
    """Return which parts of a job do not fit together, and why (methods/README §6)."""
    rule = _filled(spec)
    return [*rule.objections(spec), *_contradictions(spec, rule)]


def _require_none(faults: list[Problem]) -> None:
    if faults:
        raise InvalidJob([located(fault, {}) for fault in faults])


def _filled(spec: JobSpec) -> Composition:
    rule = rules()[spec.rule]
    parts: dict[str, Any] = {point: fill(point, rule, spec.part(point)) for point in POINTS}
    duration: Any = _duration(spec, rule)
    if duration.windows and isinstance(parts["weigh"], ByExamples) and "kind" not in (spec.weigh or {}):
        parts["weigh"] = ByUsed()  # with windows, the examples that an update was trained on count
    return Composition(name=spec.rule, train=duration, **parts)


def _duration(spec: JobSpec, rule: Rule) -> Plugin:
    try:
        return duration_of(spec, rule)
    except ValidationError as error:  # a rule's own duration may have narrower bounds than job files
        raise InvalidJob([located(fault, {}) for fault in problems(error, within=(TRAIN,))]) from None


def _contradictions(spec: JobSpec, rule: Composition) -> list[Problem]:
    """Return where a job and its rule contradict each other about what sites do, and for how long."""
    named = rules()[spec.rule]
    return [*_replaced(spec, named), *_durations(spec, named, rule)]


def _replaced(spec: JobSpec, named: Rule) -> list[Problem]:
    """Refuse a proximal term that would take the place of what makes up the rule."""
    kind = named.part("local")["kind"]
    if spec.train.proximal is None or kind in ("plain", "proximal"):
        return []
    why = f"it would take the place of local {kind}, without which there is no {named.name}; leave it out"
    return [((TRAIN, "proximal"), why)]


def _durations(spec: JobSpec, named: Rule, rule: Composition) -> list[Problem]:
    own = kinds(TRAIN)[str(named.part(TRAIN)["kind"])]
    adaptive = spec.train.until is not None or (issubclass(own, Duration) and own.adaptive)
    if adaptive and (spec.train.batches is not None or (issubclass(own, Duration) and own.windows)):
        why = "it evaluates the model after epochs, and none ends inside a window"
        return [((TRAIN, "until"), f"does not go with train.batches: {why}")]
    return not_meant(spec, named, rule.train)
