"""Plugins: frozen values with one job, registered by the point that they fill and by their kind."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from hansa.common.plugins.check import ANYTHING, fault_of
from hansa.common.values.bounds import Value
from hansa.common.values.errors import one_line
from hansa.common.values.ids import NAME

# The sections of a job file that are parts of a rule.
POINTS = ("pace", "sample", "local", "layers", "transfer", "weigh", "merge", "server", "evaluate")
# How long sites train; a job file says it by `train.epochs`, `train.batches` or `train.until`.
TRAIN = "train"
RULE_POINTS = (*POINTS, TRAIN)
LEARNERS_POINTS = ("learner", "batches")  # of a training task
ENCODING = "encoding"  # of updates: learners encode, the controller decodes
GROUP = "hansa.plugins"  # entry points of packages that provide plugins and rules
USUAL: Mapping[str, Mapping[str, object]] = {  # the parts of a rule that does not name others
    "local": {"kind": "plain"},
    "layers": {"kind": "all"},
    "transfer": {"kind": "none"},
    "evaluate": {"kind": "pooled"},
    TRAIN: {"kind": "epochs"},
}


class Plugin(Value):
    """One choice at one point of a rule; its parameters are its fields."""

    point: ClassVar[str]
    kind: ClassVar[str]


P = TypeVar("P", bound=type[Plugin])
log = logging.getLogger(__name__)
_discovered: dict[str, str] = {}  # the problem of each package, by its entry point; empty: none
_contracts: dict[str, type[Plugin]] = {}  # the base class of each point's plugins
_registry: dict[str, dict[str, type[Plugin]]] = {
    point: {} for point in (*RULE_POINTS, *LEARNERS_POINTS, ENCODING)
}


def contract(*points: str) -> Callable[[P], P]:
    """Mark a class as the base class of plugins at some points."""

    def enter(cls: P) -> P:
        _contracts.update(dict.fromkeys(points, cls))
        return cls

    return enter


def contracts() -> dict[str, type[Plugin]]:
    """Return the base class of each point's plugins, as far as their modules are loaded."""
    return dict(_contracts)


def register(point: str, kind: str) -> Callable[[P], P]:
    """Register a plugin class as `kind` at `point`."""
    if point not in _registry:
        raise ValueError(f"there is no point {point!r}; known: {', '.join(_registry)}")
    if not isinstance(kind, str) or not NAME.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a kind: use up to 64 letters, digits, '.', '_' and '-'")

    def enter(cls: P) -> P:
        if kind in _registry[point]:
            raise ValueError(f"two plugins are called {kind!r} at {point!r}")
        cls.point, cls.kind = point, kind
        _registry[point][kind] = cls
        return cls

    return enter


def kinds(point: str) -> dict[str, type[Plugin]]:
    """Return the plugins of a point by kind."""
    return dict(_registry[point])


@dataclass(frozen=True)
class Rule:
    """A named composition: for each point a kind and its default parameters."""

    name: str
    summary: str
    paper: str
    parts: dict[str, dict[str, object]]

    def part(self, point: str) -> dict[str, object]:
        """Return the kind at a point with its default parameters."""
        return dict(self.parts[point] if point in self.parts else USUAL[point])


_rules: dict[str, Rule] = {}


@dataclass(frozen=True)
class Contents:
    """What is registered at some moment: plugins by point and kind, rules by name, packages with problems."""

    plugins: dict[str, dict[str, type[Plugin]]]
    rules: dict[str, Rule]
    packages: dict[str, str]


def contents() -> Contents:
    """Return what is registered now."""
    return Contents({point: kinds(point) for point in _registry}, rules(), dict(_discovered))


def restore(before: Contents) -> None:
    """Forget what was registered since, and register again what was removed."""
    for point, plugins in before.plugins.items():
        _registry[point] = dict(plugins)
    _rules.clear()
    _rules.update(before.rules)
    _discovered.clear()
    _discovered.update(before.packages)


def add_rule(rule: Rule) -> Rule:
    """Register a rule under its name."""
    if not isinstance(rule.name, str) or not NAME.fullmatch(rule.name):
        raise ValueError(
            f"{rule.name!r:.99} is not a rule's name: use up to 64 letters, digits, '.', '_' and '-'"
        )
    if rule.name in _rules:
        raise ValueError(f"two rules are called {rule.name!r}")
    _rules[rule.name] = rule
    return rule


def rules() -> dict[str, Rule]:
    """Return the rules by name."""
    return dict(_rules)


def fill(point: str, rule: Rule | None, given: Mapping[str, Any] | None) -> Plugin:
    """Return the plugin at a point, with the job's parameters. Raises KeyError or ValidationError."""
    defaults = rule.part(point) if rule else {}
    usual = defaults.pop("kind", None)
    parameters = dict(given or {})
    kind: Any = parameters.pop("kind", usual)
    return _registry[point][kind].model_validate((defaults if kind == usual else {}) | parameters)


def discover(points: Sequence[str] = RULE_POINTS) -> None:
    """Import the modules that installed packages name as entry points, which registers their plugins.

    A package that cannot be loaded must not keep a controller from its other jobs: it is logged and
    remembered. So is a package with classes that cannot be plugins, or with rules that have unknown parts at
    these `points` or parameters that do not fit; a learner knows no parts of rules. The rest of such a
    package can be used.
    """
    for entry in entry_points(group=GROUP):
        if entry.name in _discovered:
            continue
        _discovered[entry.name] = ""
        before = contents()
        try:
            entry.load()
        except ANYTHING as error:
            restore(before)  # half a package is none
            _discovered[entry.name] = f"could not be loaded: {entry.value}: {one_line(error)}"
            log.exception("the plugin package %r %s", entry.name, _discovered[entry.name])
        else:
            faults = [*_drop_classes(before.plugins), *_drop_rules(before.rules, points)]
            if faults:
                _discovered[entry.name] = f"has faults: {'; '.join(faults)}"
                log.warning("the plugin package %r %s", entry.name, _discovered[entry.name])


def _drop_classes(before: Mapping[str, Mapping[str, type[Plugin]]]) -> Iterator[str]:
    """Remove new classes that cannot be plugins, and yield what is wrong with them."""
    for point, held in _registry.items():
        for kind in sorted(held.keys() - before[point].keys()):
            try:
                wrong = fault_of(held[kind], _contracts.get(point))
            except ANYTHING as error:  # a class may do anything when it is inspected
                wrong = one_line(error)
            if wrong:
                del held[kind]
                yield f"{point} {kind!r}: {wrong}"


def _drop_rules(before: Mapping[str, Rule], points: Sequence[str]) -> Iterator[str]:
    """Remove new rules that no job could use, and yield what is wrong with them."""
    for name in [name for name in _rules if name not in before]:
        try:
            wrong = _rule_fault(_rules[name], points)
        except ANYTHING as error:  # it may hold anything
            wrong = one_line(error)
        if wrong:
            del _rules[name]
            yield f"rule {name!r} {wrong}"


def _rule_fault(rule: Rule, points: Sequence[str]) -> str:
    """Return what is wrong with a rule, or "". Missing parameters are allowed: a job may give them."""
    try:
        TypeAdapter(Rule).validate_python(vars(rule))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"is not well formed: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    named: Mapping[str, Mapping[str, object]] = {**USUAL, **rule.parts}
    wanting = [point for point in points if named.get(point, {}).get("kind") not in _registry[point]]
    if wanting:
        return f"has no known kind of {', '.join(wanting)}"
    for point in points:
        try:
            fill(point, rule, None)
        except ValidationError as error:
            odd = [fault for fault in error.errors(include_url=False) if fault["type"] != "missing"]
            if odd:
                return f"does not fit its {point}: {'.'.join(map(str, odd[0]['loc']))}: {odd[0]['msg']}"
    return ""


def undiscovered() -> dict[str, str]:
    """Return the packages that could not be loaded, or only in part, and why."""
    return {name: why for name, why in _discovered.items() if why}


def not_loaded() -> str:
    """Return the end of a message about an unknown name: the packages whose plugins are missing."""
    return "".join(f"; the plugin package {name!r} {why}" for name, why in undiscovered().items())
