"""What every plugin of learners must do, whoever wrote it: the checks that ship with the package, for each kind."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import hansa.learner.plugins.selection  # noqa: F401 - registers the plugins
from hansa.common.methods.adaptive import ADAPTIVE
from hansa.common.methods.importance import IMPORTANCE
from hansa.common.methods.proximal import PROXIMAL
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import LEARNERS_POINTS, Plugin
from hansa.learner.plugins.testing import APP, data, network, run_of, state, trained_by, work
from hansa.plugin.testing import checks_of
from tests.unit.learner import local_parts

NEEDED: dict[str, dict[str, Any]] = {  # arguments without a default, which those of packages have none of
    ADAPTIVE: {"vc_loss": 0.0, "tombstones": 5, "epochs": 2},
    PROXIMAL: {"mu": 0.1},
}


def everywhere() -> list[Any]:
    """Return each plugin with each of its checks; some tests register odd ones of their own."""
    usual = [
        (kind, cls)
        for point in LEARNERS_POINTS
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


def test_a_learner_has_what_hansas_rules_ask_for() -> None:
    code = "import hansa.learner.daemon; from hansa.common.plugins.registry import kinds; print(*kinds('learner'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert {ADAPTIVE, IMPORTANCE, PROXIMAL} <= set(done.stdout.split())


def test_a_task_that_names_the_usual_source_is_trained_as_one_that_names_none() -> None:
    plain, named = network(), network()
    done, _ = trained_by(run_of(APP, plain, data(), work()))
    again, _ = trained_by(run_of(APP, named, data(), work(plugins.kinds("batches")["shuffled"]())))
    assert state(plain) == state(named)
    assert done == again
    assert math.isfinite(done.loss)
