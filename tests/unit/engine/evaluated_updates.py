"""Plugins for tests that remember; one is a weigher that has every update evaluated by the other sites."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Train
from hansa.controller.evaluation.plans import pool
from hansa.controller.plugin.parts import EvalRequest, Sampler, Weigher
from hansa.controller.plugin.plans import EvalPlan
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution, View


class Scores(BaseModel):
    """The weight of every site's last update, and how often the weigher was asked."""

    last: dict[SiteName, float] = {}
    asked: int = 0


@register("weigh", "evaluated")
class Evaluated(Weigher[Scores]):
    """An update weighs its accuracy at other sites; without reports, as much as the site's last update."""

    validates: ClassVar[bool] = True
    evaluates: ClassVar[bool] = True
    seconds: float = Field(30.0, description="how long to wait for the others")
    absent: bool = Field(False, description="ask a site that has no evaluator, too")

    def begin(self) -> Scores:
        """Begin without weights."""
        return Scores()

    def requests(self, state: Scores, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Ask all other sites."""
        state.asked += 1
        others = [site for site in view.evaluators if site != contribution.site]
        return [
            EvalRequest(site, self.seconds)
            for site in [*others, *([SiteName("nobody")] if self.absent else [])]
        ]

    def weigh(self, state: Scores, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the accuracy over all reports."""
        for c in contributions:
            accuracy = pool(list(c.reports.values())).get("accuracy")
            state.last[c.site] = accuracy if accuracy is not None else state.last.get(c.site, 1.0)
        return np.array([state.last[c.site] for c in contributions], dtype=np.float64)


class Turns(BaseModel):
    """How often each site has had a turn."""

    seen: dict[SiteName, int] = {}


@register("sample", "patient")
class Patient(Sampler[Turns]):
    """The two sites with the fewest updates take part."""

    def begin(self) -> Turns:
        """Begin before the first turn."""
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
    """After every other merge, only some tensors are trained."""

    tensors: tuple[str, ...] = Field(("head",), description="which")

    def begin(self) -> Phases:
        """Begin before the first merge."""
        return Phases()

    def shape(self, state: Phases, site: SiteName, work: Train, view: View) -> Train:
        """Name the tensor in odd phases."""
        return work.model_copy(update={"tensors": self.tensors}) if state.merges % 2 else work

    def merged(self, state: Phases, contributions: Sequence[Contribution], view: View) -> None:
        """Go on to the next phase."""
        state.merges += 1


@register("evaluate", "one-by-one")
class OneByOne(EvalPlan[Turns]):
    """One evaluator is asked at a time; some reports make it fail."""

    def begin(self) -> Turns:
        """Begin before the first turn."""
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
