"""The names for writing rules and plugins of controller and learner; docs/adding-a-rule.md is the tutorial.

Names are loaded on first use, because packages of plugins are themselves loaded while Hansa's rules are. The
checks that an author runs over a plugin are in `hansa.plugin.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hansa.common.encodings.contract import Encoding, Piece
    from hansa.common.job.spec import JobSpec, Problem
    from hansa.common.models.model import Role
    from hansa.common.plugins.registry import Plugin, Rule, add_rule, register, rules
    from hansa.common.values.errors import Rejected, Stale
    from hansa.common.values.history import Finding, Score
    from hansa.common.values.ids import ModelKey, SiteName, TaskId
    from hansa.common.values.results import Evaluation, UpdateFacts
    from hansa.common.values.settings.training import LocalPluginSpec, Travel
    from hansa.common.values.tasks import Task, Train
    from hansa.controller.plugin.actions import (
        Action,
        Ask,
        HopEnded,
        MergeNow,
        NextHop,
        NextRound,
        Prepare,
        Release,
        Stop,
        Wake,
        Withdraw,
    )
    from hansa.controller.plugin.arithmetic import (
        Additive,
        Aggregator,
        Coordinatewise,
        MergeInfo,
        Moments,
        Remembering,
        Selecting,
        ServerUpdate,
        TooFew,
    )
    from hansa.controller.plugin.auxiliary import Auxiliary
    from hansa.controller.plugin.composition import Composition
    from hansa.controller.plugin.evidence import Evidence, Findings
    from hansa.controller.plugin.outline import Outline, TensorOutline
    from hansa.controller.plugin.parts import (
        Draw,
        EvalRequest,
        Nothing,
        Pacer,
        Part,
        Sampler,
        Weigher,
    )
    from hansa.controller.plugin.plans import EvalPlan
    from hansa.controller.plugin.policies import Duration, Policy
    from hansa.controller.plugin.view import Contribution, View
    from hansa.controller.rules.baselines.fedavg import FEDAVG
    from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun, ProbeRun, Returned

_HOMES = {
    "common.encodings.contract": (
        "Encoding",
        "Piece",
    ),
    "common.job.spec": (
        "JobSpec",
        "Problem",
    ),
    "common.models.model": ("Role",),
    "common.plugins.registry": (
        "Plugin",
        "Rule",
        "add_rule",
        "register",
        "rules",
    ),
    "common.values.errors": ("Rejected", "Stale"),
    "common.values.history": (
        "Finding",
        "Score",
    ),
    "common.values.ids": (
        "ModelKey",
        "SiteName",
        "TaskId",
    ),
    "common.values.results": ("Evaluation", "UpdateFacts"),
    "common.values.tasks": ("Task", "Train"),
    "common.values.settings.training": ("LocalPluginSpec", "Travel"),
    "controller.plugin.actions": (
        "Action",
        "Ask",
        "HopEnded",
        "MergeNow",
        "NextHop",
        "NextRound",
        "Prepare",
        "Release",
        "Stop",
        "Wake",
        "Withdraw",
    ),
    "controller.plugin.arithmetic": (
        "Additive",
        "Aggregator",
        "Coordinatewise",
        "MergeInfo",
        "Moments",
        "Remembering",
        "Selecting",
        "ServerUpdate",
        "TooFew",
    ),
    "controller.plugin.auxiliary": ("Auxiliary",),
    "controller.plugin.composition": ("Composition",),
    "controller.plugin.evidence": (
        "Evidence",
        "Findings",
    ),
    "controller.plugin.outline": (
        "Outline",
        "TensorOutline",
    ),
    "controller.plugin.parts": (
        "Draw",
        "EvalRequest",
        "Nothing",
        "Pacer",
        "Part",
        "Sampler",
        "Weigher",
    ),
    "controller.plugin.plans": ("EvalPlan",),
    "controller.plugin.policies": (
        "Duration",
        "Policy",
    ),
    "controller.plugin.view": (
        "Contribution",
        "View",
    ),
    "controller.rules.baselines.fedavg": ("FEDAVG",),
    "learner.plugins.contract": (
        "BatchSource",
        "LocalPlugin",
        "LocalRun",
        "ProbeRun",
        "Returned",
    ),
}
__all__ = [
    "FEDAVG",
    "Action",
    "Additive",
    "Aggregator",
    "Ask",
    "Auxiliary",
    "BatchSource",
    "Composition",
    "Contribution",
    "Coordinatewise",
    "Draw",
    "Duration",
    "Encoding",
    "EvalPlan",
    "EvalRequest",
    "Evaluation",
    "Evidence",
    "Finding",
    "Findings",
    "HopEnded",
    "JobSpec",
    "LocalPlugin",
    "LocalPluginSpec",
    "LocalRun",
    "MergeInfo",
    "MergeNow",
    "ModelKey",
    "Moments",
    "NextHop",
    "NextRound",
    "Nothing",
    "Outline",
    "Pacer",
    "Part",
    "Piece",
    "Plugin",
    "Policy",
    "Prepare",
    "ProbeRun",
    "Problem",
    "Rejected",
    "Release",
    "Remembering",
    "Returned",
    "Role",
    "Rule",
    "Sampler",
    "Score",
    "Selecting",
    "ServerUpdate",
    "SiteName",
    "Stale",
    "Stop",
    "Task",
    "TaskId",
    "TensorOutline",
    "TooFew",
    "Train",
    "Travel",
    "UpdateFacts",
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
