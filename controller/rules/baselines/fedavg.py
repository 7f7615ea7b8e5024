"""Federated averaging (McMahan et al., 2017): sampling, epochs, weights by examples, the plain mean."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import TRAIN, Rule, add_rule, register
from hansa.common.values.bounds import EPOCHS
from hansa.common.values.ids import SiteName
from hansa.controller.plugin.arithmetic import Aggregator, MergeInfo, Moments, Remembering, ServerUpdate
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing, Sampler, Weigher
from hansa.controller.plugin.policies import Duration
from hansa.controller.plugin.view import Contribution, View

BatchNorm = Literal["mean", "pooled"]
POOLED = (
    "batch-norm variances: the mean of the sites' variances, or pooled, the variance of all data together"
)


@register("sample", "all")
class All(Sampler):
    """Every connected site takes part in every round."""

    takes_all: ClassVar[bool] = True

    def choose(
        self, state: Nothing, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return all sites."""
        return [site for site in view.sites if site not in exclude]


@register("sample", "uniform")
class Uniform(Sampler):
    """A random sample of the sites takes part, drawn in each round without replacement."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the sites; at least one is drawn")

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of draws that are too small for a model."""
        return too_few(self.fraction, spec)

    def choose(
        self, state: Nothing, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Draw max(floor(fraction · sites), 1) sites."""
        eligible = [site for site in view.sites if site not in exclude]
        drawn = view.rng("uniform").permutation(len(eligible))[: how_many(self.fraction, view, eligible)]
        return [eligible[i] for i in drawn]


def how_many(fraction: float, view: View, eligible: Sequence[SiteName]) -> int:
    """Return max(floor(fraction · sites), 1), or fewer if fewer sites are eligible."""
    return min(len(eligible), _share(fraction, len(view.sites)))


def _share(fraction: float, sites: int) -> int:
    return max(int(fraction * sites + 1e-9), 1)


def too_few(fraction: float, spec: JobSpec) -> list[Problem]:
    """Warn of a fraction that draws too few sites for a model if only the job's minimum of sites joins."""
    drawn, least = _share(fraction, spec.sites.min), spec.sites.together
    if drawn >= least:
        return []
    why = f"{drawn} of {spec.sites.min} sites would be drawn, and a model needs {least} (sites.together)"
    return [(("sample", "fraction"), f"{why}: no model would be made")]


@register(TRAIN, "epochs")
class Epochs(Duration):
    """Every task makes a fixed number of passes over the site's data."""

    epochs: int = Field(1, ge=1, le=EPOCHS, strict=True, description="of each task")

    @property
    def usual_epochs(self) -> int:
        """Return the epochs of a task."""
        return self.epochs


@register("weigh", "examples")
class ByExamples(Weigher):
    """FedAvg: the weight of a contribution is the number of examples its site trains on."""

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return n_train of each."""
        return np.array([c.facts.n_train for c in contributions], dtype=np.float64)


@register("weigh", "equal")
class Equal(Weigher):
    """Every contribution has the same weight; sizes are not used."""

    equal: ClassVar[bool] = True
    factors: ClassVar[bool] = True

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return ones."""
        return np.ones(len(contributions))


@register("merge", "mean")
class Mean(Aggregator):
    """The weighted mean of the round's contributions, exact and independent of their order."""

    bn: BatchNorm = Field("mean", description=POOLED)

    @property
    def pools(self) -> bool:
        """Whether batch-norm variances are those of all sites' data together."""
        return self.bn == "pooled"


@register("merge", "incremental")
class Incremental(Remembering):
    """The mean of every site's last contribution, from running sums: O(model) per merge (Metis)."""

    kept: ClassVar[bool] = True

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weighers that change the weights of all sites with every update."""
        if rule.weigh.joint:
            why = "it weighs all updates together, not one at a time; use merge latest"
            return [self.clash(rule.weigh, why), *super().objections(spec, rule)]
        return super().objections(spec, rule)


@register("merge", "latest")
class Latest(Remembering):
    """The mean of every site's last contribution, computed from scratch in each merge: O(model × sites)."""

    bn: BatchNorm = Field("mean", description=POOLED)

    @property
    def pools(self) -> bool:
        """Whether batch-norm variances are those of all sites' data together."""
        return self.bn == "pooled"


@register("server", "plain")
class Plain(ServerUpdate):
    """The proposal is the next community model."""

    plain: ClassVar[bool] = True

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Return the proposal."""
        return proposal, moments


FEDAVG = add_rule(
    Rule(
        name="fedavg",
        summary="synchronous rounds, mean weighted by the sites' examples",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, "
        "2017",
        parts={
            "pace": {"kind": "sync"},
            "sample": {"kind": "all"},
            "local": {"kind": "plain"},
            "weigh": {"kind": "examples"},
            "merge": {"kind": "mean"},
            "server": {"kind": "plain"},
        },
    )
)

ASYNC_FEDAVG = add_rule(
    Rule(
        name="async-fedavg",
        summary="every update is merged on arrival, mean of all sites' last updates weighted by examples",
        paper="Stripelis and Ambite, Accelerating Federated Learning in Heterogeneous … Environments, 2020",
        parts=FEDAVG.parts | {"pace": {"kind": "async"}, "merge": {"kind": "incremental"}},
    )
)

SEMISYNC_FEDAVG = add_rule(
    Rule(
        name="semisync-fedavg",
        summary="rounds of equal length: fast sites make more steps; mean weighted by examples",
        paper="Stripelis and Ambite, Semi-Synchronous Federated Learning, 2021",
        parts=FEDAVG.parts | {"pace": {"kind": "semisync"}},
    )
)
