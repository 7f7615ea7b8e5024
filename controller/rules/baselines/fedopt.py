"""Server optimizers (Reddi et al., 2021; FedAvgM: Hsu et al., 2019).

They take Δ = proposal − current as a gradient. The denominator is √v + τ, and there is no bias correction.
All arithmetic and all moments are in float64.
"""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.controller.plugin.arithmetic import MergeInfo, Moments, ServerUpdate
from hansa.controller.rules.baselines.fedavg import FEDAVG

REDDI = "Reddi et al., Adaptive Federated Optimization, 2021"


class Optimizer(ServerUpdate):
    """A server optimizer that scales the step of every number by itself (baselines §5)."""

    lr: float = Field(0.1, gt=0, description="η, the server's learning rate")
    beta1: float = Field(
        0.9, ge=0, lt=1, description="how much of the mean of Δ is kept from version to version"
    )
    tau: float = Field(1e-3, gt=0, description="τ, the smallest denominator: the larger, the less adaptive")
    v0: float | None = Field(None, ge=0, description="the initial v; default: τ²")

    @property
    def moments(self) -> Mapping[str, float]:
        """The means of Δ and of its square."""
        return {"m": 0.0, "v": self.tau**2 if self.v0 is None else self.v0}

    @abstractmethod
    def square(self, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
        """Return the next v from Δ²."""

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Make one step."""
        delta = proposal - current
        m = self.beta1 * moments["m"] + (1 - self.beta1) * delta
        v = self.square(moments["v"], delta * delta)
        return current + self.lr * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}


@register("server", "adam")
class Adam(Optimizer):
    """FedAdam: steps are divided by the root of a running mean of Δ²."""

    beta2: float = Field(
        0.99, ge=0, lt=1, description="how much of the mean of Δ² is kept from version to version"
    )

    def square(self, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
        """Return a running mean."""
        return np.asarray(self.beta2 * v + (1 - self.beta2) * squared)


@register("server", "yogi")
class Yogi(Optimizer):
    """FedYogi: like FedAdam, but v changes by no more than a share of Δ², so that it forgets slowly."""

    beta2: float = Field(0.99, ge=0, lt=1, description="1 − the share of Δ² by which v changes")

    def square(self, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
        """Move v towards Δ² by a share of Δ², not of their difference."""
        return np.asarray(v - (1 - self.beta2) * squared * np.sign(v - squared))


@register("server", "adagrad")
class Adagrad(Optimizer):
    """FedAdagrad: steps are divided by the root of the sum of all Δ² so far, so they only get smaller."""

    def square(self, v: np.ndarray, squared: np.ndarray) -> np.ndarray:
        """Return the sum."""
        return np.asarray(v + squared)


@register("server", "momentum")
class Momentum(ServerUpdate):
    """FedAvgM: heavy-ball momentum at the server, v ← β·v + Δ, w ← w + η·v.

    With β = 0 this is a server learning rate: nothing is carried on, and η = 1 takes the proposal as it is.
    """

    lr: float = Field(1.0, gt=0, description="η, the server's learning rate")
    beta: float = Field(0.9, ge=0, lt=1, description="β, how much of the last step is kept")

    @property
    def moments(self) -> Mapping[str, float]:
        """The velocity, if there is any."""
        return {"v": 0.0} if self.beta else {}

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Make one step."""
        if not self.beta:
            return (proposal if self.lr == 1 else current + self.lr * (proposal - current)), moments
        v = self.beta * moments["v"] + (proposal - current)
        return current + self.lr * v, {"v": v}


def _fedopt(name: str, kind: str, summary: str, paper: str = REDDI) -> Rule:
    return add_rule(
        Rule(name=name, summary=summary, paper=paper, parts=FEDAVG.parts | {"server": {"kind": kind}})
    )


FEDADAM = _fedopt("fedadam", "adam", "FedAvg with Adam at the server")
FEDYOGI = _fedopt("fedyogi", "yogi", "FedAvg with Yogi at the server")
FEDADAGRAD = _fedopt("fedadagrad", "adagrad", "FedAvg with Adagrad at the server")
FEDAVGM = _fedopt(
    "fedavgm",
    "momentum",
    "FedAvg with heavy-ball momentum at the server",
    "Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution …, 2019",
)
