"""The contract of the controller's plugins: every kind passes the checks that ship with the package."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel, Field

import hansa.controller.rules  # noqa: F401 - registers the plugins
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import RULE_POINTS, Plugin, register
from hansa.controller.plugin.arithmetic import ServerUpdate
from hansa.controller.plugin.parts import Nothing, Part, Weigher
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.testing import memory_type
from hansa.controller.rules.baselines.fedavg import Equal
from hansa.controller.rules.dvw import Dvw, Worth
from hansa.plugin.testing import ContractBroken, check, check_rule, checks_of
from tests.unit.engine import evaluated_updates, examined

KEEPING = (
    evaluated_updates.__name__,
    examined.__name__,
)  # modules of tests whose plugins keep the contract, too
DEEPEST = 3  # SemiSync < Rounds < Pacer < Part


def registered(point: str) -> dict[str, type[Plugin]]:
    """Return the plugins of Hansa and of installed packages, without the odd ones of some tests."""
    return {
        kind: cls
        for kind, cls in plugins.kinds(point).items()
        if not cls.__module__.startswith("tests.") or cls.__module__ in KEEPING
    }


def everywhere() -> list[Any]:
    """Return each plugin, with its defaults, and each of its checks."""
    made = [cls() for point in RULE_POINTS for _, cls in sorted(registered(point).items())]
    return [
        pytest.param(plugin, each, id=f"{plugin.point}-{plugin.kind}-{each.__name__}")
        for plugin in made
        for each in checks_of(plugin)
    ]


@pytest.mark.parametrize(("plugin", "each"), everywhere())
def test_a_plugin_keeps_its_contract(plugin: Plugin, each: Callable[[Plugin], None]) -> None:
    each(plugin)


@pytest.mark.parametrize("name", sorted(plugins.rules()))
def test_a_rule_fills_every_point_without_objections(name: str) -> None:
    check_rule(name)


@pytest.mark.parametrize("point", RULE_POINTS)
def test_no_plugin_inherits_more_deeply_than_the_pacers(point: str) -> None:
    for cls in registered(point).values():
        written = [
            base for base in cls.__mro__ if "[" not in base.__name__
        ]  # not those that type parameters make
        assert written.index(Part) <= DEEPEST, f"{cls.__name__}: {written}"


# What authors are told.


class Odd(BaseModel):
    """The memory of a plugin."""


def test_the_memory_of_a_plugin_is_its_type_parameter() -> None:
    assert memory_type(Dvw) is Worth
    assert memory_type(Equal) is Nothing
    assert all(type(cls().begin()) is memory_type(cls) for cls in (Dvw, Equal))


class Careless(Weigher[Odd]):
    """Breaks its contract."""

    weights: tuple[float, ...] | None = Field(None, description="the weights that it returns")

    def weigh(self, state: Odd, contributions: Any, view: Any) -> Any:
        return np.array(self.weights if self.weights is not None else range(len(contributions)), dtype=float)


@register("weigh", "careless")
class Forgetful(Careless):
    """Names a memory, but does not return it from `begin`."""


@register("weigh", "silent")
class Silent(Equal):
    """Has a parameter without a description."""

    share: float = 0.5


@register("weigh", "liar")
class Liar(Careless):
    """Claims that all weights are equal."""

    equal: ClassVar[bool] = True

    def begin(self) -> Odd:
        return Odd()


@register("weigh", "boaster")
class Boaster(Careless):
    """Claims that no weight is above 1."""

    factors: ClassVar[bool] = True

    def begin(self) -> Odd:
        return Odd()


@register("server", "unprepared")
class Unprepared(ServerUpdate):
    """Divides by what the weights add up to, which may be 0."""

    def prepare(self, state: Nothing, contributions: Any, weights: np.ndarray, view: Any) -> float:
        with np.errstate(invalid="ignore"):
            return float(weights[0] / weights.sum()) if len(weights) else 1.0

    def step(self, current: np.ndarray, proposal: np.ndarray, moments: Any, info: Any) -> Any:
        return current + info.prepared * (proposal - current), moments


@register("local", "trusting")
class Trusting(Policy):
    """Believes that every site reports what it asked for."""

    def shape(self, state: Nothing, site: Any, work: Any, view: Any) -> Any:
        return work

    def merged(self, state: Nothing, contributions: Any, view: Any) -> None:
        for contribution in contributions:
            contribution.facts.metrics["asked_for"]


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Careless(), "Careless is not registered: decorate it"),
        (Forgetful(), r"weigh 'careless': begin\(\) returned Nothing\(\), not Odd"),
        (Silent(), "weigh 'silent': share has no description"),
        (Liar(), "weigh 'liar': .* are not equal"),
        (Liar(weights=(1.0,)), "weigh 'liar': .* are not 2 weights"),
        (Liar(weights=(-1.0,)), "weigh 'liar': .* are not all ≥ 0"),
        (Boaster(weights=(2.0,)), "weigh 'boaster': .* are not all ≤ 1"),
        (Unprepared(), "server 'unprepared': it prepared NaN or infinite numbers"),
        (Trusting(), "local 'trusting': after updates without metrics it failed: KeyError: 'asked_for'"),
    ],
)
def test_an_author_is_told_what_is_wrong(plugin: Plugin, message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        check(plugin)


def test_checking_an_unknown_rule_says_so() -> None:
    with pytest.raises(ContractBroken, match="rule 'no-such-rule' is not known"):
        check_rule("no-such-rule")


# As an author runs it: in a fresh interpreter, without pytest.

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adding-a-rule.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
RUN = """
test_the_power_weigher_keeps_its_contract()
plugins = (Clip(), Clipped(), LocalMomentum(), ClippedAndNoisy(), PrivateStep(), Sign(), Signs())
for plugin in plugins:
    check(plugin)
check_rule("tempered")
check_rule("dp-fedavg")
assert "pytest" not in sys.modules
"""


def test_the_examples_of_the_tutorial_keep_their_contracts(tmp_path: Path) -> None:
    source = "\n".join((*BLOCKS, "import sys\nfrom hansa.plugin.testing import check_rule", RUN))
    (tmp_path / "mine.py").write_text(source)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
