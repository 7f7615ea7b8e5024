"""DP-FedAvg (McMahan et al., 2018) with adaptive clipping (Andrew et al., 2021).

A site shortens what it has changed to a norm C and adds noise to every number before anything leaves it. The
controller divides the sum of the changes by what the weights are expected to add up to, so that a site moves
the model by at most C / expected, no matter which other sites take part. C follows how much sites have had to
shorten.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from hansa.plugin import (
    FEDAVG,
    Composition,
    Contribution,
    JobSpec,
    LocalPlugin,
    LocalPluginSpec,
    LocalRun,
    MergeInfo,
    Moments,
    Nothing,
    Policy,
    Problem,
    Returned,
    Role,
    Rule,
    ServerUpdate,
    SiteName,
    Train,
    View,
    add_rule,
    register,
)

FACTOR = "clip_factor"


@register("learner", "private")
class ClippedAndNoisy(LocalPlugin):
    """Shortens what the site has changed to `norm`, and adds noise to it."""

    norm: float = Field(1.0, gt=0)
    noise: float = Field(1.0, ge=0)
    alone = ""  # it works with any app

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Clip all parameters together; statistics and counters of the site's data stay at the site."""
        changes: dict[str, np.ndarray] = {}
        for name, array in update.tensors.items():
            if update.roles[name] is Role.PARAM:
                changes[name] = array.astype(np.float64) - run.anchor[name]
            else:
                array[...] = run.anchor[name]
        length = math.sqrt(sum(float(np.vdot(change, change)) for change in changes.values()))
        factor = self.norm / max(length, self.norm)
        chance = run.secret("private")
        for name, change in changes.items():
            noise = chance.normal(scale=self.noise * self.norm, size=change.shape)
            update.tensors[name][...] = run.anchor[name] + (factor * change + noise)
        update.metrics[FACTOR] = factor + chance.normal(scale=self.noise)  # the data show in it, too


class Norm(BaseModel):
    """How long an update may be at the moment."""

    value: float


@register("local", "private")
class Private(Policy[Norm]):
    """Sites clip their updates and add noise to them; the norm adapts to how much they have had to clip."""

    norm: float = Field(1.0, gt=0, description="how long an update may be, at first")
    noise: float = Field(1.0, ge=0, description="deviation of the noise, as a multiple of the norm")
    target: float = Field(0.8, gt=0, le=1, description="the mean clip factor that the norm adapts to")
    rate: float = Field(0.2, ge=0, description="how fast the norm adapts; 0: it stays as it is")

    def begin(self) -> Norm:
        """Start with the norm of the job."""
        return Norm(value=self.norm)

    def shape(self, state: Norm, site: SiteName, work: Train, view: View) -> Train:
        """Name the learner's plugin, with the norm as it is now."""
        plugin = LocalPluginSpec(name="private", args={"norm": state.value, "noise": self.noise})
        return work.model_copy(update={"plugins": (*work.plugins, plugin)})

    def merged(self, state: Norm, contributions: Sequence[Contribution], view: View) -> None:
        """Adapt the norm. A site may state anything, so no factor counts for more than a likely one."""
        stated = [c.facts.metrics.get(FACTOR, math.nan) for c in contributions]
        slack = 3 * self.noise
        factors = [min(max(factor, -slack), 1 + slack) for factor in stated if math.isfinite(factor)]
        if factors:
            state.value *= math.exp(self.rate * (self.target - math.fsum(factors) / len(factors)))

    def diagnostics(
        self, state: Norm, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Show the norm that the updates of a merge were clipped to."""
        return {"norm": state.value}


@register("server", "fixed-divisor")
class FixedDivisor(ServerUpdate):
    """Adds what sites have changed, divided by a number that does not depend on who takes part."""

    expected: float = Field(3.0, gt=0, description="what the weights of a merge are expected to add up to")

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weights without a bound, and steps that are not those of sites from the current model."""
        problems: list[Problem] = []
        if not rule.weigh.factors:
            problems.append(self.clash(rule.weigh, "a site's share has no bound; use equal"))
        if not rule.pace.common_rounds or rule.pace.travels:
            problems.append(self.clash(rule.pace, "updates must start from the current model; use sync"))
        if not rule.merge.averages:
            problems.append(self.clash(rule.merge, "the proposal must be the mean of the updates; use mean"))
        return problems

    def prepare(
        self, state: Nothing, contributions: Sequence[Contribution], weights: np.ndarray, view: View
    ) -> float:
        """Return how far to go from the current model to the mean."""
        return math.fsum(weights) / self.expected

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Go there."""
        assert isinstance(info.prepared, float)
        return current + info.prepared * (proposal - current), moments


DP_FEDAVG = add_rule(
    Rule(
        name="dp-fedavg",
        summary="FedAvg with clipped and noisy updates",
        paper="McMahan et al., Learning Differentially Private Recurrent Language Models, 2018",
        parts=FEDAVG.parts
        | {"local": {"kind": "private"}, "weigh": {"kind": "equal"}, "server": {"kind": "fixed-divisor"}},
    )
)
