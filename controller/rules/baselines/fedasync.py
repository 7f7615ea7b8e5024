"""FedAsync (Xie et al., 2019) and the server-side mixing that it is based on."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.controller.plugin.arithmetic import MergeInfo, Moments, ServerUpdate
from hansa.controller.plugin.composition import Composition
from hansa.controller.rules.baselines.fedavg import FEDAVG
from hansa.controller.rules.baselines.staleness import DEFAULTS, Function, discounted


@register("server", "mix")
class Mix(ServerUpdate):
    """The next model is (1 − α)·current + α·proposal; α may fall with the staleness of the update.

    An update trained from the newest model has staleness 0 and counts with the full α. (Xie et al. count from
    the version that is being made, which is one more.)
    """

    statistics: ClassVar[bool] = True  # a convex mixture keeps variances ≥ 0
    alpha: float = Field(0.6, ge=0, le=1, description="share of the proposal; 1 takes it as it is")
    staleness: Function = Field(
        "constant",
        description="how α falls with staleness d: not at all, by (d+1)^-a, or by 1/(a(d-b)+1) beyond d = b",
    )
    a: float | None = Field(None, ge=0, description=DEFAULTS)
    b: int = Field(4, ge=0, strict=True, description="hinge only: staleness up to which α does not fall")
    max_staleness: int | None = Field(
        None,
        ge=0,
        strict=True,
        description="updates staler than this are not merged; their sites get the newest model",
    )

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse aggregators whose proposal contains the current model's contributions already."""
        if rule.merge.remembers:
            return [self.clash(rule.merge, "it averages every site's last update already; use merge mean")]
        return []

    def refuses(self, staleness: int) -> str:
        """Refuse what is staler than `max_staleness`."""
        if self.max_staleness is None or staleness <= self.max_staleness:
            return ""
        return f"{staleness} versions stale, which is more than max_staleness {self.max_staleness}"

    def share(self, staleness: int) -> float:
        """Return α·s(d) (baselines §4)."""
        return discounted(self.alpha, self.staleness, staleness, self.a, self.b)

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Mix; a share of 1 or 0 is a copy, bit for bit."""
        share = self.share(info.staleness)
        if share in (0.0, 1.0):
            return (proposal if share else current), moments
        return share * proposal + (1 - share) * current, moments


def _fedasync(name: str, how: str, summary: str) -> Rule:
    return add_rule(
        Rule(
            name=name,
            summary=summary,
            paper="Xie, Koyejo and Gupta, Asynchronous Federated Optimization, 2019",
            parts=FEDAVG.parts
            | {
                "pace": {"kind": "async"},
                "local": {"kind": "proximal", "mu": 0.005},
                "weigh": {"kind": "equal"},
                "server": {"kind": "mix", "staleness": how},
            },
        )
    )


FEDASYNC = _fedasync("fedasync", "polynomial", "every update is mixed in on arrival; stale ones count less")
FEDASYNC_CONSTANT = _fedasync("fedasync-constant", "constant", "every update is mixed in with the same share")
FEDASYNC_HINGE = _fedasync(
    "fedasync-hinge", "hinge", "every update is mixed in; those staler than b hardly count"
)

SERVER_MIX = add_rule(
    Rule(
        name="server-mix",
        summary="FedAvg whose community model moves only a share of the way to each round's mean",
        paper="the server momentum of RADFed; an exponential moving average, not heavy ball",
        parts=FEDAVG.parts | {"server": {"kind": "mix"}},
    )
)
