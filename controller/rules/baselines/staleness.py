"""How much less a stale update counts: the functions of FedAsync (Xie et al., 2019), and weights by them."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing, Weigher
from hansa.controller.plugin.view import Contribution, View

Function = Literal["constant", "polynomial", "hinge"]
POLYNOMIAL, HINGE = 0.5, 10.0  # the defaults of `a`
DEFAULTS = f"default: {POLYNOMIAL:g} for polynomial, {HINGE:g} for hinge"


def discounted(full: float, function: Function, staleness: int, a: float | None, b: int) -> float:
    """Return what is left of `full`, which an update that is not stale has (baselines §4)."""
    match function:
        case "polynomial":
            return float(full * (staleness + 1) ** -(POLYNOMIAL if a is None else a))
        case "hinge" if staleness > b:
            return full / ((HINGE if a is None else a) * (staleness - b) + 1)
    return full


@register("weigh", "staleness")
class ByStaleness(Weigher):
    """A contribution counts less the more versions were made since its site began to train (FedBuff)."""

    factors: ClassVar[bool] = True
    function: Function = Field(
        "polynomial",
        description="how weights fall with staleness t: not at all, (t+1)^-a, or 1/(a(t-b)+1) beyond t = b",
    )
    a: float | None = Field(None, ge=0, description=DEFAULTS)
    b: int = Field(4, ge=0, strict=True, description="hinge only: staleness up to which weights do not fall")

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of jobs in which no update is stale."""
        if not rule.pace.common_rounds:
            return []
        return [(("weigh",), "staleness: in a round no update is stale, so all weights are 1; use equal")]

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return s(t) of each."""
        return np.array(
            [discounted(1.0, self.function, c.staleness[0], self.a, self.b) for c in contributions]
        )
