"""Plugins: frozen values with one job, found by the point they fill and the kind they are."""

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

from hansa.common.errors import one_line, reason
from hansa.common.tasks import Value

POINTS = ("pace", "sample", "local", "layers", "weigh", "merge", "server", "evaluate")  # of a rule
LEARNERS_POINTS = ("learner", "batches")  # of a training task
ANYTHING = (Exception, SystemExit)  # that a plugin may raise: none of it may end a controller
GROUP = "hansa.plugins"  # entry points of packages that bring plugins and rules of their own
USUAL: Mapping[str, Mapping[str, object]] = {  # where a rule says nothing
    "local": {"kind": "plain"},
    "layers": {"kind": "all"},
    "evaluate": {"kind": "pooled"},
}


class Plugin(Value):
    """One choice at one point of a rule; its parameters are its fields."""

    point: ClassVar[str]
    kind: ClassVar[str]


P = TypeVar("P", bound=type[Plugin])
log = logging.getLogger(__name__)
_discovered: dict[str, str] = {}  # packages by entry point, with what went wrong
_registry: dict[str, dict[str, type[Plugin]]] = {point: {} for point in (*POINTS, *LEARNERS_POINTS)}


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
    epochs: int = 1  # of a task, if the job has no train.epochs
    batches: int | None = None  # of a task, if the job has no train.batches; none: tasks have epochs

    def part(self, point: str) -> dict[str, object]:
        """Return the kind at a point with the parameters it starts from."""
        return dict(self.parts[point] if point in self.parts else USUAL[point])


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
    start = rule.part(point) if rule else {}
    said = dict(given or {})
    kind = said.pop("kind", start.get("kind"))
    base = {name: value for name, value in start.items() if name != "kind"} if kind == start.get("kind") else {}
    return _registry[point][kind].model_validate(base | said)


def discover(points: Sequence[str] = POINTS) -> None:
    """Import the modules that installed packages name as entry points; importing them registers what they bring.

    A package that cannot be loaded must not keep a controller from its other jobs: it is logged and remembered. So is
    one whose rules have parts at these `points` that nobody knows; a learner knows none of a rule's.
    """
    for entry in entry_points(group=GROUP):
        if entry.name not in _discovered:
            _discovered[entry.name] = ""
            before = rules()
            try:
                entry.load()
                _require_parts([rule for name, rule in rules().items() if name not in before], points)
            except ANYTHING as error:
                _discovered[entry.name] = f"{entry.value}: {one_line(error)}"
                log.exception("the plugin package %r could not be loaded: %s", entry.name, _discovered[entry.name])


def _require_parts(added: Iterable[Rule], points: Sequence[str]) -> None:
    """Forget rules with a part that nobody has registered, and name them."""
    lacking: dict[str, str] = {}
    for rule in added:
        named: Mapping[str, Mapping[str, object]] = {**USUAL, **rule.parts}
        wanting = [point for point in points if named.get(point, {}).get("kind") not in _registry[point]]
        if wanting:
            del _rules[rule.name]
            lacking[rule.name] = ", ".join(wanting)
    if lacking:
        raise ValueError("; ".join(f"rule {name!r} has no known kind of {points}" for name, points in lacking.items()))


def undiscovered() -> dict[str, str]:
    """Return the packages that could not be loaded, and why."""
    return {name: why for name, why in _discovered.items() if why}


def not_loaded() -> str:
    """Name the packages whose plugins are missing, to be added to what is not known."""
    return "".join(f"; the plugin package {name!r} could not be loaded: {why}" for name, why in undiscovered().items())


def culprit(error: BaseException) -> Plugin | None:
    """Return the plugin that an error arose in, if it did."""
    found: Plugin | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        found = owner if isinstance(owner, Plugin) and hasattr(owner, "kind") else found
    return found


def blame(error: BaseException) -> str:
    """Say why something failed, in our words if we foresaw it, and name the plugin that it arose in, if it did."""
    found = culprit(error)
    return f"{found.point} {found.kind!r}: {reason(error)}" if found else reason(error)
