"""The names for writing rules and plugins, on both sides; docs/adding-a-rule.md explains how.

Names are loaded on first use, because packages of plugins are loaded while Hansa's own rules are.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hansa.common.plugins.registry import Plugin, Rule, add_rule, register, rules
    from hansa.common.values.errors import Stale
    from hansa.common.values.ids import SiteName
    from hansa.common.values.results import Evaluation
    from hansa.common.values.tasks import Train
    from hansa.common.values.training import LocalPluginSpec
    from hansa.controller.plugin.actions import (
        Ask,
        MergeNow,
        NextHop,
        NextRound,
        Prepare,
        Stop,
        Wake,
        Withdraw,
    )
    from hansa.controller.plugin.arithmetic import Aggregator, Coordinatewise, Selecting, ServerUpdate
    from hansa.controller.plugin.evidence import Evidence, Findings
    from hansa.controller.plugin.outline import Outline
    from hansa.controller.plugin.parts import (
        Draw,
        EvalPlan,
        EvalRequest,
        Pacer,
        Part,
        Policy,
        Sampler,
        Weigher,
    )
    from hansa.controller.plugin.view import Contribution, View
    from hansa.controller.rules.fedavg import FEDAVG
    from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun

_HOMES = {
    "common.values.errors": ("Stale",),
    "common.values.ids": ("SiteName",),
    "common.plugins.registry": ("Plugin", "Rule", "add_rule", "register", "rules"),
    "common.values.results": ("Evaluation",),
    "common.values.tasks": ("Train",),
    "common.values.training": ("LocalPluginSpec",),
    "controller.plugin.actions": (
        "Ask",
        "MergeNow",
        "NextHop",
        "NextRound",
        "Prepare",
        "Stop",
        "Wake",
        "Withdraw",
    ),
    "controller.plugin.arithmetic": ("Aggregator", "Coordinatewise", "Selecting", "ServerUpdate"),
    "controller.plugin.evidence": ("Evidence", "Findings"),
    "controller.plugin.outline": ("Outline",),
    "controller.plugin.parts": (
        *("Draw", "EvalPlan", "EvalRequest", "Pacer", "Part", "Policy", "Sampler", "Weigher"),
    ),
    "controller.plugin.view": ("Contribution", "View"),
    "controller.rules.fedavg": ("FEDAVG",),
    "learner.plugins.contract": ("BatchSource", "LocalPlugin", "LocalRun"),
}
__all__ = [
    "FEDAVG",
    "Aggregator",
    "Ask",
    "BatchSource",
    "Contribution",
    "Coordinatewise",
    "Draw",
    "EvalPlan",
    "EvalRequest",
    "Evaluation",
    "Evidence",
    "Findings",
    "LocalPlugin",
    "LocalPluginSpec",
    "LocalRun",
    "MergeNow",
    "NextHop",
    "NextRound",
    "Outline",
    "Pacer",
    "Part",
    "Plugin",
    "Policy",
    "Prepare",
    "Rule",
    "Sampler",
    "Selecting",
    "ServerUpdate",
    "SiteName",
    "Stale",
    "Stop",
    "Train",
    "View",
    "Wake",
    "Weigher",
    "Withdraw",
    "add_rule",
    "register",
    "rules",
]


def __getattr__(name: str) -> Any:
    """Load a name on first use."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"hansa.{home}"), name)
    raise AttributeError(f"module 'hansa.plugin' has no attribute {name!r}")
