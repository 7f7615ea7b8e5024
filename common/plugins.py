"""Plugins: frozen values with one job, found by the point they fill and the kind they are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from hansa.common.tasks import Value

POINTS = ("pace", "sample", "weigh", "merge", "server")


class Plugin(Value):
    """One choice at one point of a rule; its parameters are its fields."""

    point: ClassVar[str]
    kind: ClassVar[str]


P = TypeVar("P", bound=type[Plugin])
_registry: dict[str, dict[str, type[Plugin]]] = {point: {} for point in POINTS}


def register(point: str, kind: str) -> Callable[[P], P]:
    """Enter a plugin class under `kind` at `point`."""

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
    """A named composition: for each point a kind and the parameters it starts from."""

    name: str
    summary: str
    paper: str
    parts: dict[str, dict[str, object]]
    adaptive: bool = False  # sites train until their validation loss says so, even if the job has no train.until


_rules: dict[str, Rule] = {}


def add_rule(rule: Rule) -> Rule:
    """Enter a rule under its name."""
    if rule.name in _rules:
        raise ValueError(f"two rules are called {rule.name!r}")
    _rules[rule.name] = rule
    return rule


def rules() -> dict[str, Rule]:
    """Return the rules by name."""
    return dict(_rules)


def fill(point: str, rule: Rule | None, given: Mapping[str, Any] | None) -> Plugin:
    """Return the plugin at a point: the rule's, with what the job says of it. Raises KeyError or ValidationError."""
    start = dict(rule.parts[point]) if rule else {}
    said = dict(given or {})
    kind = said.pop("kind", start.get("kind"))
    base = {name: value for name, value in start.items() if name != "kind"} if kind == start.get("kind") else {}
    return _registry[point][kind].model_validate(base | said)
