"""FedCM (Xu et al., 2021) with a momentum at every site; and a buffer in which stale updates fade."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hansa.plugin import (
    FEDAVG,
    Auxiliary,
    Composition,
    Contribution,
    JobSpec,
    LocalPlugin,
    LocalPluginSpec,
    LocalRun,
    Nothing,
    Policy,
    Problem,
    Returned,
    Rule,
    SiteName,
    Train,
    View,
    Weigher,
    add_rule,
    register,
)

DIRECTION = "direction"


@register("learner", "client-momentum")
class ClientMomentum(LocalPlugin[dict[str, Any]]):
    """Every step goes partly where the community went; the site's momentum goes up with its update."""

    alpha: float = Field(0.1, gt=0, le=1)
    beta: float = Field(0.5, ge=0, lt=1)
    auxiliary = (DIRECTION,)

    def begin(self, run: LocalRun) -> dict[str, Any]:
        """Return where the community went, by parameter."""
        import torch

        direction = run.auxiliary[DIRECTION]
        return {
            name: torch.tensor(direction[name], device=parameter.device, dtype=parameter.dtype)
            for name, parameter in run.model.named_parameters()
            if parameter.requires_grad and name in direction
        }

    def pull(self, held: dict[str, Any], run: LocalRun) -> None:
        """Replace a gradient g by α·g + (1 − α)·direction."""
        for name, parameter in run.model.named_parameters():
            if name in held and parameter.grad is not None:
                parameter.grad.mul_(self.alpha).add_(held[name], alpha=1 - self.alpha)

    def amend(self, held: dict[str, Any], run: LocalRun, update: Returned) -> None:
        """Send the site's momentum up: v ← β·v + (1 − β)·(x − y)/(K·η)."""
        travelled = max(run.steps, 1) * run.work.optimizer.lr
        momenta: dict[str, np.ndarray] = {}
        for name in run.auxiliary[DIRECTION]:
            if name in update.tensors:
                step = (run.anchor[name].astype(np.float64) - update.tensors[name]) / travelled
                earlier = run.arrays.get(f"client-momentum/{name}", np.zeros_like(step))
                momenta[name] = (self.beta * earlier + (1 - self.beta) * step).astype(np.float32)
                run.arrays[f"client-momentum/{name}"] = momenta[name]
        update.auxiliary[DIRECTION] = momenta
        update.metrics["lost"] = float(run.lost)


@register("local", "client-momentum")
class Momentum(Policy):
    """FedCM: every local step goes partly in the direction in which the community went."""

    alpha: float = Field(0.1, gt=0, le=1, description="share of a site's own gradients in its steps")
    beta: float = Field(0.5, ge=0, lt=1, description="share of earlier tasks in a site's momentum; 0: none")

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """The mean of the sites' momenta."""
        return (Auxiliary(name=DIRECTION, merge="mean"),)

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse optimizers whose steps are not a rate times a gradient."""
        if spec.train.optimizer.kind == "sgd" and not spec.train.optimizer.momentum:
            return []
        return [(("train", "optimizer"), "client-momentum: steps must be a rate times a gradient; use sgd")]

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Name the learner's plugin."""
        plugin = LocalPluginSpec(name="client-momentum", args={"alpha": self.alpha, "beta": self.beta})
        return work.model_copy(update={"plugins": (*work.plugins, plugin)})


@register("weigh", "fading")
class Fading(Weigher):
    """A contribution counts half as much with every so many versions that were made since its site began."""

    factors: ClassVar[bool] = True
    half_life: float = Field(2.0, gt=0, description="versions after which an update counts half")

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return 2^(−t/half_life) of each, where t is its staleness in versions."""
        staleness = np.array([c.staleness[0] for c in contributions], dtype=np.float64)
        return np.asarray(0.5 ** (staleness / self.half_life))


add_rule(
    Rule(
        name="fedcm",
        summary="FedAvg whose local steps go partly where the community went",
        paper="Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021",
        parts=FEDAVG.parts | {"local": {"kind": "client-momentum"}},
    )
)
add_rule(
    Rule(
        name="fading-buffer",
        summary="without rounds, the changes of every few updates are added, and stale ones fade",
        paper="after Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, 2022",
        parts=FEDAVG.parts
        | {"pace": {"kind": "async", "buffer": 4}, "weigh": {"kind": "fading"}, "merge": {"kind": "delta"}},
    )
)
