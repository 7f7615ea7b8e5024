"""FedSMB and FedMMB (Nasirigerdeh et al., 2020): a task is a window of a few batches instead of epochs.

The learner keeps its place in its data (`hansa.learner.training.window`) and moves on once an update is
committed. The rule says how many batches to take. Every task says which of the site's updates was committed
last, so a learner that was killed after the commit, but before it made a note of it, still knows that the
batches of that update are used up.

With one batch at each site, plain SGD and weights by examples used, a round is one step of central SGD on all
these batches together, exactly and for any data; docs/rules.md has the proof and what breaks it.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import TRAIN, Rule, add_rule, register
from hansa.common.values.bounds import BATCHES
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing, Weigher
from hansa.controller.plugin.policies import Duration
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import FEDAVG, ByExamples

PAPER = (
    "Nasirigerdeh et al., Federated Multi-Mini-Batch: An Efficient Training Approach to Federated "
    "Learning …, 2020"
)
FEW = 10  # with fewer batches an adaptive optimizer is still in its first, unscaled steps


@register("weigh", "used")
class ByUsed(Weigher):
    """The weight of a contribution is the number of examples that its task trained on."""

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return n_used of each."""
        return np.array([c.facts.n_used for c in contributions], dtype=np.float64)


@register(TRAIN, "batches")
class Window(Duration):
    """Every task trains on the next few batches of a pass over the site's data."""

    windows: ClassVar[bool] = True
    batches: int = Field(1, ge=1, le=BATCHES, strict=True, description="of each task")

    @property
    def usual_epochs(self) -> int:
        """Return 1: a task makes one pass over its window."""
        return 1

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of optimizers that start over too often, and of weights that do not fit windows."""
        problems: list[Problem] = []
        optimizer = spec.train.optimizer
        place = ("train", "optimizer")
        starts_over = not spec.train.keep_optimizer
        if starts_over and optimizer.kind != "sgd" and self.batches < FEW:
            why = f"{optimizer.kind} starts over with every task, and its first steps are not scaled yet"
            advice = f"with fewer than {FEW} batches use sgd, or an optimizer at the server"
            problems.append((place, f"{why}; {advice}"))
        if starts_over and optimizer.momentum and self.batches == 1:
            why = "momentum starts over with every task, so it has no effect on a single batch"
            problems.append((place, f"{why} (`server: {{kind: momentum}}` or train.keep_optimizer keep it)"))
        if isinstance(rule.weigh, ByExamples):
            why = "examples counts all examples of a site; used counts those of its window"
            problems.append((("weigh",), why))
        return problems

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Ask for the next batches; a pacer that sets the number of steps overrides how many."""
        return work.model_copy(update={"batches": self.batches})


FEDSMB = add_rule(
    Rule(
        name="fedsmb",
        summary="one batch per site and round: with plain SGD the same as central training on all batches",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "used"}, TRAIN: {"kind": "batches", "batches": 1}},
    )
)

FEDMMB = add_rule(
    Rule(
        name="fedmmb",
        summary="train.batches batches per site and round, mean weighted by the examples used",
        paper=PAPER,
        parts=FEDSMB.parts | {TRAIN: {"kind": "batches", "batches": 20}},
    )
)
