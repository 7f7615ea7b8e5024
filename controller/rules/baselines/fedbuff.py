"""FedBuff (Nguyen et al., 2022): no rounds; several updates are merged at a time, as what sites changed."""

import math
from typing import Literal

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.controller.plugin.arithmetic import Additive
from hansa.controller.plugin.composition import Composition
from hansa.controller.rules.baselines.fedavg import FEDAVG


@register("merge", "delta")
class Delta(Additive):
    """The current model plus what sites have changed in the models that they started from, however old."""

    normalise: Literal["count", "weights"] = Field(
        "count", description="what the weighted sum is divided by: the number of updates, or their weights"
    )

    @property
    def absolute(self) -> bool:
        """Whether smaller weights make a smaller step."""
        return self.normalise == "count"

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse models that travel, and weights that would make the step longer than any site's own."""
        problems: list[Problem] = []
        if rule.pace.travels:
            why = "the last hop is only a part of what has changed in a model that travels; use mean"
            problems.append(self.clash(rule.pace, why))
        if self.absolute and not rule.weigh.factors:
            why = "its weights are not factors of at most 1, so steps would grow with them"
            problems.append(self.clash(rule.weigh, f"{why}; use normalise: weights"))
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of weights that cancel out."""
        alone = not rule.pace.common_rounds and rule.pace.rounds_asked() == rule.pace.updates_asked()
        if self.absolute or rule.weigh.equal or not alone:
            return []
        why = "of a single update the weight makes no difference; use count, or a pace.buffer"
        return [(("merge", "normalise"), why)]

    def divisor(self, weights: np.ndarray) -> float:
        """Return the number of updates or the sum of their weights."""
        return float(len(weights)) if self.absolute else math.fsum(weights)


FEDBUFF = add_rule(
    Rule(
        name="fedbuff",
        summary="without rounds, the mean change of every few updates is added; stale ones count less",
        paper="Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, 2022",
        parts=FEDAVG.parts
        | {
            "pace": {"kind": "async", "buffer": 10},
            "weigh": {"kind": "staleness"},
            "merge": {"kind": "delta"},
            "server": {"kind": "momentum", "beta": 0.0},
        },
    )
)
