"""The contract of learner plugins: every kind passes the checks that ship with the package."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import hansa.learner.plugins.selection  # noqa: F401 - registers the plugins
from hansa.common.methods.adaptive import ADAPTIVE
from hansa.common.methods.ditto import DITTO
from hansa.common.methods.importance import IMPORTANCE
from hansa.common.methods.proximal import PROXIMAL
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import ENCODING, LEARNERS_POINTS, Plugin
from hansa.learner.plugins.testing import APP, data, network, run_of, state, trained_by, work
from hansa.plugin.testing import checks_of
from tests.unit.learner import local_parts

# Values for parameters without a default; plugins of other packages must have defaults.
NEEDED: dict[str, dict[str, Any]] = {
    ADAPTIVE: {"vc_loss": 0.0, "tombstones": 5, "epochs": 2},
    DITTO: {"lam": 0.1, "epochs": 1},
    PROXIMAL: {"mu": 0.1},
}


def everywhere() -> list[Any]:
    """Return each plugin with each of its checks, except for the odd plugins that some tests register."""
    usual = [
        (kind, cls)
        for point in (*LEARNERS_POINTS, ENCODING)
        for kind, cls in sorted(plugins.kinds(point).items())
        if not cls.__module__.startswith("tests.") or cls.__module__ == local_parts.__name__
    ]
    made = [cls.model_validate(NEEDED.get(kind, {})) for kind, cls in usual]
    return [
        pytest.param(plugin, each, id=f"{plugin.point}-{plugin.kind}-{each.__name__}")
        for plugin in made
        for each in checks_of(plugin)
    ]


@pytest.mark.parametrize(("plugin", "each"), everywhere())
def test_a_plugin_keeps_its_contract(plugin: Plugin, each: Callable[[Plugin], None]) -> None:
    each(plugin)


def test_a_learner_has_the_plugins_that_hansas_rules_ask_for() -> None:
    imports = "import hansa.learner.daemon; from hansa.common.plugins.registry import kinds"
    code = f"{imports}; print(*kinds('learner'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert {ADAPTIVE, IMPORTANCE, PROXIMAL} <= set(done.stdout.split())


def test_naming_the_default_batch_source_in_a_task_makes_no_difference() -> None:
    plain, named = network(), network()
    done, _ = trained_by(run_of(APP, plain, data(), work()))
    again, _ = trained_by(run_of(APP, named, data(), work(plugins.kinds("batches")["shuffled"]())))
    assert state(plain) == state(named)
    assert done == again
    assert math.isfinite(done.loss)
