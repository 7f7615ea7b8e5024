"""FedSMB and FedMMB (Nasirigerdeh et al., 2020): a task is a window of one or a few batches instead of epochs.

The learner keeps the place in its data (`hansa.learner.training.window`) and moves on once an update is
committed. From here it hears how many batches to take, and which of its updates was committed last: a learner
that was killed between the commit and its own note of it still knows that the batches of that update are used
up.

One batch at each site, plain SGD and weights by the examples used are one step of central SGD on all these
batches together, exactly and for any data; docs/rules.md has the proof and what breaks it.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import TRAIN, Rule, add_rule, register
from hansa.common.values.bounds import BATCHES
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing, Weigher
from hansa.controller.plugin.policies import Duration
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.fedavg import FEDAVG, ByExamples

PAPER = "Nasirigerdeh et al., Federated Multi-Mini-Batch: An Efficient Training Approach to Federated Learning …, 2020"
FEW = 10  # batches after which an adaptive optimizer still has not got over its first steps


@register("weigh", "used")
class ByUsed(Weigher):
    """A contribution is worth the number of examples that its task trained on."""

    def weigh(self, state: Nothing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return n_used of each."""
        return np.array([c.facts.n_used for c in contributions], dtype=np.float64)


class Committed(BaseModel):
    """Which update of each site was committed last, by the task that it answers."""

    last: dict[SiteName, TaskId] = {}


@register(TRAIN, "batches")
class Window(Duration[Committed]):
    """Every task trains on the next few batches of a pass over the site's data."""

    windows: ClassVar[bool] = True
    batches: int = Field(1, ge=1, le=BATCHES, strict=True, description="of each task")

    @property
    def usual_epochs(self) -> int:
        """Return 1: a window is gone through once."""
        return 1

    def begin(self) -> Committed:
        """Nothing is committed."""
        return Committed()

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of optimizers that begin anew too often, and of weights that do not fit windows."""
        found: list[Problem] = []
        optimizer = spec.train.optimizer
        place = ("train", "optimizer")
        anew = not spec.train.keep_optimizer
        if anew and optimizer.kind != "sgd" and self.batches < FEW:
            why = f"{optimizer.kind} begins anew with every task, and in its first steps it knows no scale"
            found.append(
                (place, f"{why}; with fewer than {FEW} batches use sgd, or an optimizer at the server")
            )
        if anew and optimizer.momentum and self.batches == 1:
            why = "momentum begins anew with every task; over one batch it does nothing"
            found.append((place, f"{why} (`server: {{kind: momentum}}` or train.keep_optimizer keep it)"))
        if isinstance(rule.weigh, ByExamples):
            found.append(
                (("weigh",), "examples counts all examples of a site; used counts those of its window")
            )
        return found

    def shape(self, state: Committed, site: SiteName, work: Train, view: View) -> Train:
        """Ask for so many batches; a pacer that says how many steps fit has the last word."""
        return work.model_copy(update={"batches": self.batches, "after": state.last.get(site, "")})

    def committed(self, state: Committed, contribution: Contribution) -> None:
        """Remember it: its batches are used up."""
        state.last[contribution.site] = contribution.task.id


FEDSMB = add_rule(
    Rule(
        name="fedsmb",
        summary="one batch at each site in each round: with plain SGD, central training on all batches together",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "used"}, TRAIN: {"kind": "batches", "batches": 1}},
    )
)

FEDMMB = add_rule(
    Rule(
        name="fedmmb",
        summary="train.batches batches at each site in each round, mean weighted by the examples used",
        paper=PAPER,
        parts=FEDSMB.parts | {TRAIN: {"kind": "batches", "batches": 20}},
    )
)
