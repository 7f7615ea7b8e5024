"""What rules and plugins are written with, on both sides: docs/adding-a-rule.md tells how.

Names are loaded when they are used, for a package of plugins is itself loaded while Hansa's rules are.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hansa.common.errors import Stale
    from hansa.common.ids import SiteName
    from hansa.common.plugins import Plugin, Rule, add_rule, register, rules
    from hansa.common.tasks import Evaluation, LocalPluginSpec, Train
    from hansa.controller.engine.actions import Ask, MergeNow, NextHop, NextRound, Prepare, Stop, Wake, Withdraw
    from hansa.controller.engine.arithmetic import Aggregator, Coordinatewise, Selecting, ServerUpdate
    from hansa.controller.engine.evidence import Evidence, Findings
    from hansa.controller.engine.outline import Outline
    from hansa.controller.engine.parts import Draw, EvalPlan, EvalRequest, Pacer, Part, Policy, Sampler, Weigher
    from hansa.controller.engine.view import Contribution, View
    from hansa.controller.rules.fedavg import FEDAVG
    from hansa.learner.parts import BatchSource, LocalPlugin, LocalRun

_HOMES = {
    "common.errors": ("Stale",),
    "common.ids": ("SiteName",),
    "common.plugins": ("Plugin", "Rule", "add_rule", "register", "rules"),
    "common.tasks": ("Evaluation", "LocalPluginSpec", "Train"),
    "controller.engine.actions": ("Ask", "MergeNow", "NextHop", "NextRound", "Prepare", "Stop", "Wake", "Withdraw"),
    "controller.engine.arithmetic": ("Aggregator", "Coordinatewise", "Selecting", "ServerUpdate"),
    "controller.engine.evidence": ("Evidence", "Findings"),
    "controller.engine.outline": ("Outline",),
    "controller.engine.parts": (*("Draw", "EvalPlan", "EvalRequest", "Pacer", "Part", "Policy", "Sampler", "Weigher"),),
    "controller.engine.view": ("Contribution", "View"),
    "controller.rules.fedavg": ("FEDAVG",),
    "learner.parts": ("BatchSource", "LocalPlugin", "LocalRun"),
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
