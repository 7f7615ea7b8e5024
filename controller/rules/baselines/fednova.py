"""FedNova (Wang et al., NeurIPS 2020): sites that make more steps do not pull the model towards themselves.

An update is divided by |a|, how much its site's steps add up to, before it is averaged, and the mean is
multiplied by the effective number of steps τ of the round. What Hansa computes is in fednova §1.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import expm1, log, log1p
from typing import ClassVar

import numpy as np
from pydantic import Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.methods.proximal import PROXIMAL, Proximal
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.errors import HansaError
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.naming import distinct_names
from hansa.controller.plugin.parts import Nothing, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.extrapolation import Extrapolation, refuse_optimizers
from hansa.controller.rules.baselines.fedavg import FEDAVG
from hansa.controller.rules.baselines.fedprox import ProximalTerm

PAPER = "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous … Optimization, 2020"


def accumulated(contribution: Contribution) -> float:
    """Return |a|: the sum of the factors with which a site's gradients are in its update; 0 without steps."""
    work, steps = contribution.task.work, contribution.facts.steps
    assert isinstance(work, Train)
    mu = sum(Proximal.model_validate(plugin.args).mu for plugin in work.plugins if plugin.name == PROXIMAL)
    momentum, alpha = work.optimizer.momentum, work.optimizer.lr * mu
    if not steps:
        return 0.0
    if momentum and alpha:
        raise HansaError("momentum and a proximal term together have no known accumulation of steps")
    if momentum:
        geometric = -expm1(steps * log(momentum)) / (1 - momentum)
        return max((steps - momentum * geometric) / (1 - momentum), float(steps))  # it is never less
    if not alpha:
        return float(steps)
    if alpha >= 1:
        raise HansaError(f"lr·μ is {alpha:g}: a step would go beyond the model that the term pulls to")
    return -expm1(steps * log1p(-alpha)) / alpha


@register("weigh", "nova")
class Nova(Weigher):
    """FedNova: the examples of a site, divided by how much its local steps add up to."""

    joint: ClassVar[bool] = True

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse a server update that does not multiply by the effective steps."""
        if isinstance(rule.server, NovaStep):
            return []
        return [self.clash(rule.server, "the mean must be scaled by the effective steps; use server nova")]

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return n · max|a| / |a| of each, so that equal |a| give FedAvg's weights; 0 without steps."""
        steps = [accumulated(c) for c in contributions]
        most = max(steps, default=0.0)
        weights = [
            float(c.facts.n_train * Fraction(most) / Fraction(own)) if own else 0.0
            for c, own in zip(contributions, steps, strict=True)
        ]
        return np.array(weights, dtype=np.float64)

    def diagnostics(
        self, state: Nothing, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Show |a| of each update."""
        names = distinct_names(contributions)
        return {"accumulated": {str(n): accumulated(c) for n, c in zip(names, contributions, strict=True)}}


@register("server", "nova")
class NovaStep(Extrapolation):
    """FedNova: the normalised mean is multiplied by the effective number of local steps."""

    tau: float | None = Field(
        None, gt=0, description="τ, the effective steps of a round; default: the weighted mean of the sites'"
    )

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse what makes an update something else than a known sum of gradients at this round's model."""
        problems = super().objections(spec, rule)
        problems += refuse_optimizers(spec, "how much its steps add up to is not known")
        if not isinstance(rule.weigh, Nova):
            problems.append(self.clash(rule.weigh, "updates must be divided by their steps; use weigh nova"))
        pulls = rule.local.mu if isinstance(rule.local, ProximalTerm) else 0.0
        if pulls and spec.train.optimizer.momentum:
            why = "with a proximal term, too, it is not known how much steps add up to; use one of them"
            problems.append((("train", "optimizer", "momentum"), why))
        elif pulls * spec.train.optimizer.lr >= 1:
            why = "lr·μ must be below 1, or a step goes beyond the model that the term pulls to"
            problems.append((("local", "mu"), why))
        return problems

    def factor(
        self, state: Nothing, contributions: Sequence[Contribution], weights: Sequence[float]
    ) -> float:
        """Return U = Σ w|a| · Σ (w/|a|) / (Σ w)², where w = u·|a|, exact until it is rounded once.

        With `tau`, U = τ · Σ (w/|a|) / Σ w.
        """
        steps = [Fraction(accumulated(c)) for c in contributions]
        divided = [Fraction(weight) for weight in weights]  # w/|a|, up to a common factor
        whole = sum(u * a for u, a in zip(divided, steps, strict=True))
        if self.tau is not None:
            return float(Fraction(self.tau) * sum(divided) / whole)
        return float(sum(u * a * a for u, a in zip(divided, steps, strict=True)) * sum(divided) / whole**2)


FEDNOVA = add_rule(
    Rule(
        name="fednova",
        summary="FedAvg that corrects for sites making different numbers of local steps",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "nova"}, "server": {"kind": "nova"}},
    )
)
