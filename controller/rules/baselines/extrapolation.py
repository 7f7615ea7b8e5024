"""Server updates that go a factor U of the way from the current model to the mean, with a U for every merge.

Rules whose next model is x + Σ uᵢ (yᵢ − x) are split into two parts: a weigher gives the uᵢ up to a common
factor, the aggregator computes the mean m by these weights, and a server update takes x + U·(m − x), where U
is the sum of the true uᵢ.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic

import numpy as np

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.values.errors import HansaError
from hansa.common.values.tasks import Train
from hansa.controller.plugin.arithmetic import MergeInfo, Moments, ServerUpdate
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import S
from hansa.controller.plugin.view import Contribution, View


class Extrapolation(ServerUpdate[S], Generic[S]):
    """The next model is current + U·(proposal − current); statistics are those of the proposal.

    U may be larger than 1. A running variance that is extrapolated could become negative, so only parameters
    are.
    """

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse updates that did not start from the current model, and proposals that are not their mean."""
        problems: list[Problem] = []
        if not rule.pace.common_rounds or rule.pace.travels:
            why = "updates must start from the model that they are merged into; use sync or semisync"
            problems.append(self.clash(rule.pace, why))
        if not rule.merge.averages:
            why = "the step is a multiple of the way to the round's weighted mean; use mean"
            problems.append(self.clash(rule.merge, why))
        return problems

    @abstractmethod
    def factor(self, state: S, contributions: Sequence[Contribution], weights: Sequence[float]) -> float:
        """Return U, given the contributions that count and their weights, which are all above 0."""

    def prepare(
        self, state: S, contributions: Sequence[Contribution], weights: np.ndarray, view: View
    ) -> float:
        """Return U; 1 if nothing counts, because the model stays as it is then."""
        counting = [c for c, weight in zip(contributions, weights, strict=True) if weight > 0]
        if not counting:
            return 1.0
        if len({c.task.work.tensors for c in counting if isinstance(c.task.work, Train)}) > 1:
            raise HansaError("the updates of a merge carry different tensors, so one step cannot fit all")
        return self.factor(state, counting, [float(weight) for weight in weights if weight > 0])

    def step(
        self, current: np.ndarray, proposal: np.ndarray, moments: Moments, info: MergeInfo
    ) -> tuple[np.ndarray, Moments]:
        """Go U of the way; all of it, or none, is a copy, bit for bit."""
        assert isinstance(info.prepared, float)
        if info.prepared in (0, 1):
            return (proposal if info.prepared else current), moments
        return current + info.prepared * (proposal - current), moments


def refuse_optimizers(spec: JobSpec, why: str) -> list[Problem]:
    """Refuse optimizers whose update is not a plain sum of gradients of this task."""
    problems: list[Problem] = []
    if spec.train.optimizer.kind != "sgd":
        problems.append((("train", "optimizer", "kind"), f"{spec.train.optimizer.kind}: {why}; use sgd"))
    problems += refuse_shaped_steps(spec, why)
    if spec.train.keep_optimizer:
        problems.append((("train", "keep_optimizer"), f"state of earlier tasks is in the update: {why}"))
    return problems


def refuse_shaped_steps(spec: JobSpec, why: str) -> list[Problem]:
    """Refuse what makes a step something else than the gradient times the task's rate."""
    train, problems = spec.train, list[Problem]()
    if train.optimizer.kind == "sgd" and not train.optimizer.plain_steps:
        name = "nesterov" if train.optimizer.nesterov else "dampening"
        problems.append((("train", "optimizer", name), f"{why}; leave it out"))
    if train.schedule.changes and train.schedule.by == "step":
        problems.append(
            (("train", "schedule", "by"), f"the rate changes within a task: {why}; use by: round")
        )
    if train.clip is not None:
        problems.append((("train", "clip"), f"clipped gradients have other lengths: {why}; leave it out"))
    return problems
