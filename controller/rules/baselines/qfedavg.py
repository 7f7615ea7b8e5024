"""q-FedAvg (Li et al., ICLR 2020): sites on which the model is still bad count for more.

The larger q is, the more evenly the loss is spread over the sites, and the smaller are the steps. What Hansa
computes is in qfedavg §1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field, JsonValue, TypeAdapter

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.methods.starting_loss import STARTING_LOSS, StartingLoss
from hansa.common.models.model import ModelSpec, Role
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import TaskId
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.parts import Nothing, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.extrapolation import Extrapolation, refuse_optimizers
from hansa.controller.rules.baselines.fedavg import FEDAVG
from hansa.controller.rules.baselines.fedprox import ProximalTerm

PAPER = "Li, Sanjabi, Beirami and Smith, Fair Resource Allocation in Federated Learning, 2020"
Q = (
    "0 counts all sites alike, more favours sites with large losses but makes much shorter steps (try 0.1);"
    " the same for weigh and server"
)
LEAST = 1e-10  # the smallest loss: a power of 0 would be 0 or infinite
TIES = TypeAdapter(dict[str, list[list[str]]])  # the question of an examination
SHORT = 0.1  # of the way to the mean: operators are told of shorter steps


def starting_loss(contribution: Contribution) -> float | None:
    """Return F, the loss that a site reports of the model it started from; None if it cannot be one."""
    loss = contribution.facts.metrics.get(STARTING_LOSS, math.nan)
    return max(loss, LEAST) if math.isfinite(loss) and loss >= 0 else None


@register("weigh", "loss-power")
class LossPower(Weigher):
    """q-FedAvg: a power of the loss that the model had at a site before the site trained it."""

    joint: ClassVar[bool] = True
    q: float = Field(1.0, ge=0, le=100, description=Q)

    @property
    def plugins(self) -> tuple[LocalPluginSpec, ...]:
        """The plugin that reports the loss."""
        return (LocalPluginSpec(name=STARTING_LOSS, args=StartingLoss(least=0.0).model_dump()),)

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse a server update that does not make its step by the same losses."""
        if not isinstance(rule.server, QStep):
            return [self.clash(rule.server, "the step must follow from the losses; use server q")]
        if rule.server.q != self.q:
            why = f"it is {self.q:g}, but server.q is {rule.server.q:g}; both must be the same"
            return [((self.point, "q"), why)]
        return []

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return (F / max F)^q of each; 0 for a site whose loss is not a number."""
        losses = [starting_loss(c) for c in contributions]
        most = max((loss for loss in losses if loss is not None), default=1.0)
        weights = [0.0 if loss is None else (loss / most) ** self.q for loss in losses]
        return np.array(weights, dtype=np.float64)


class Moved(BaseModel):
    """How far the updates of the merge that is being weighed have moved, and the model with them."""

    squares: dict[TaskId, float | None] = {}  # ‖x − y‖² over all parameters; None: too large for a number
    step: float = 1.0  # U of the merge
    warned: bool = False  # operators have been told that steps are short


@register("server", "q")
class QStep(Extrapolation[Moved]):
    """q-FedAvg: the step is divided by an upper bound of the curvature, made from losses and updates."""

    needs_outline: ClassVar[bool] = True
    needs_anatomy: ClassVar[bool] = True  # tensors that are one parameter have moved only once

    q: float = Field(1.0, ge=0, le=100, description=Q)

    def begin(self) -> Moved:
        """Start without updates."""
        return Moved()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse everything but plain SGD from this round's model."""
        problems = super().objections(spec, rule)
        why = "the bound holds for plain gradient steps"
        problems += refuse_optimizers(spec, why)
        if spec.train.optimizer.momentum:
            problems.append((("train", "optimizer", "momentum"), f"{why}; leave momentum out"))
        if isinstance(rule.local, ProximalTerm) and rule.local.mu:
            problems.append(self.clash(rule.local, f"{why}; use plain"))
        if not isinstance(rule.weigh, LossPower):
            problems.append(self.clash(rule.weigh, "weights must be powers of losses; use loss-power"))
        return problems

    def question(self, state: Moved, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Ask how far each update has moved; say which tensors are one parameter."""
        anatomy = view.outline.anatomy if view.outline else None
        return {"ties": [list(tie) for tie in anatomy.ties]} if anatomy else {"ties": []}

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Return ‖x − y‖² of each, over all parameters; none if it overflows."""
        squares, again = np.zeros(len(contributions)), _again(question, models.spec)
        for tensor in models.spec.tensors:
            if tensor.role is not Role.PARAM or tensor.name in again:
                continue
            before, start = models.community(tensor.name).reshape(-1), 0
            for rows in models.rows(contributions, tensor.name):
                stop = start + rows.shape[1]
                with np.errstate(over="ignore"):
                    squares += np.square(rows - before[start:stop]).sum(axis=1)
                start = stop
        return Findings([square if math.isfinite(square) else None for square in squares.tolist()])

    def examined(
        self,
        state: Moved,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Take the squares; without them there is no step."""
        if not isinstance(facts, list):
            raise HansaError(f"how far the updates have moved could not be found out: {trouble}")
        squares = dict(zip((c.task.id for c in contributions), facts, strict=True))
        state.squares = Moved.model_validate({"squares": squares}).squares

    def prepare(
        self, state: Moved, contributions: Sequence[Contribution], weights: np.ndarray, view: View
    ) -> float:
        """Return U, and remember it."""
        state.step = super().prepare(state, contributions, weights, view)
        return state.step

    def diagnostics(
        self, state: Moved, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Warn once of short steps: with q = 1 and many local steps, a job seems to learn nothing."""
        if state.warned or state.step >= SHORT:
            return {}
        state.warned = True
        way = f"with q = {self.q:g}, the model goes only {100 * state.step:.2g} % of the way to the mean"
        return {"warning": f"q-fedavg: {way}; use a smaller q, or many more rounds with few local steps"}

    def factor(self, state: Moved, contributions: Sequence[Contribution], weights: Sequence[float]) -> float:
        """Return U = L ΣF^q / Σh, where h = q F^(q−1) L² ‖x − y‖² + L F^q and L = 1/η.

        Numerator and denominator are divided by L·max F^q: with q = 0, they are equal and U is exactly 1.
        """
        curved = [
            weight * (1 + self._curvature(state, c)) for c, weight in zip(contributions, weights, strict=True)
        ]
        return sum(weights) / sum(curved)

    def _curvature(self, state: Moved, c: Contribution) -> float:
        """Return q · L · ‖x − y‖² / F, the first term of h as a multiple of the second."""
        assert isinstance(c.task.work, Train)
        if not self.q:
            return 0.0
        square = state.squares[c.task.id]
        if square is None:
            return math.inf
        return self.q * square / (c.task.work.optimizer.lr * (starting_loss(c) or LEAST))


def _again(question: JsonValue, spec: ModelSpec) -> set[str]:
    """Return the tensors of a model that are the same parameter as an earlier one of its tensors."""
    ties = TIES.validate_python(question)["ties"]
    return {name for tie in ties for name in [each for each in tie if each in spec.index][1:]}


Q_FEDAVG = add_rule(
    Rule(
        name="q-fedavg",
        summary="sites on which the model is worse count for more, so that losses become more even",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "loss-power"}, "server": {"kind": "q"}},
    )
)
