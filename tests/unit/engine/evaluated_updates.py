"""Plugins for tests: a weigher that has every update evaluated by the other sites and remembers, and its company."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Train
from hansa.controller.plugin.parts import EvalRequest, Sampler, Weigher
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.evaluation import pool


class Scores(BaseModel):
    """What every site's last update was worth, and how often the weigher was asked."""

    last: dict[SiteName, float] = {}
    asked: int = 0


@register("weigh", "evaluated")
class Evaluated(Weigher[Scores]):
    """An update is worth the accuracy that other sites find; if nobody answers, what the site's last one was worth."""

    evaluates: ClassVar[bool] = True
    seconds: float = Field(30.0, description="how long to wait for the others")
    absent: bool = Field(False, description="ask a site that has no evaluator, too")

    def begin(self) -> Scores:
        """Nothing is known at first."""
        return Scores()

    def requests(self, state: Scores, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Ask all others."""
        state.asked += 1
        others = [site for site in view.evaluators if site != contribution.site]
        return [
            EvalRequest(site, self.seconds)
            for site in [*others, *([SiteName("nobody")] if self.absent else [])]
        ]

    def weigh(self, state: Scores, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the accuracy over all who answered."""
        for c in contributions:
            found = pool(list(c.reports.values())).get("accuracy")
            state.last[c.site] = found if found is not None else state.last.get(c.site, 1.0)
        return np.array([state.last[c.site] for c in contributions], dtype=np.float64)


class Turns(BaseModel):
    """Whose turn it was how often."""

    seen: dict[SiteName, int] = {}


@register("sample", "patient")
class Patient(Sampler[Turns]):
    """The two sites whose updates came least often take part."""

    def begin(self) -> Turns:
        """Nobody has had a turn."""
        return Turns()

    def choose(
        self, state: Turns, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return at most two sites."""
        return sorted(sorted(set(view.sites) - exclude), key=lambda site: state.seen.get(site, 0))[:2]

    def observe(self, state: Turns, contribution: Contribution) -> None:
        """Count an update."""
        state.seen[contribution.site] = state.seen.get(contribution.site, 0) + 1


class Phases(BaseModel):
    """How many merges there were."""

    merges: int = 0


@register("local", "alternate")
class Alternate(Policy[Phases]):
    """Every other merge only some tensors are trained."""

    tensors: tuple[str, ...] = Field(("head",), description="which")

    def begin(self) -> Phases:
        """Nothing is merged yet."""
        return Phases()

    def shape(self, state: Phases, site: SiteName, work: Train, view: View) -> Train:
        """Name the tensor in odd phases."""
        return work.model_copy(update={"tensors": self.tensors}) if state.merges % 2 else work

    def merged(self, state: Phases, contributions: Sequence[Contribution], view: View) -> None:
        """Go on to the next phase."""
        state.merges += 1


@register("evaluate", "one-by-one")
class OneByOne(EvalPlan[Turns]):
    """One evaluator after another is asked; some findings it cannot take."""

    def begin(self) -> Turns:
        """Nobody has had a turn."""
        return Turns()

    def due(self, state: Turns, view: View) -> Sequence[SiteName]:
        """Ask the one whose turn it is."""
        chosen = sorted(view.evaluators, key=lambda site: (state.seen.get(site, 0), site))[:1]
        for site in chosen:
            state.seen[site] = state.seen.get(site, 0) + 1
        return chosen

    def combine(self, reports: Mapping[SiteName, Evaluation]) -> Mapping[str, float]:
        """Return the best loss."""
        if any(report.n == 13 for report in reports.values()):
            raise ValueError("thirteen brings bad luck")
        losses = [report.loss_sum / report.n for report in reports.values() if report.n]
        return {"best": min(losses)} if losses else {}
