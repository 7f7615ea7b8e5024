"""Plugins for tests: a weigher that has every update evaluated by the other sites and remembers, and its company."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from pydantic import BaseModel, Field

from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Evaluation, Train
from hansa.controller.plugin.parts import EvalPlan, EvalRequest, Policy, Sampler, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.evaluation import pool


class Scores(BaseModel):
    """What every site's last update was worth, and how often the weigher was asked."""

    last: dict[SiteName, float] = {}
    asked: int = 0


@register("weigh", "appraised")
class Appraised(Weigher):
    """An update is worth the accuracy that other sites find; if nobody answers, what the site's last one was worth."""

    evaluates = True
    seconds: float = Field(30.0, description="how long to wait for the others")
    absent: bool = Field(False, description="ask a site that has no evaluator, too")

    def begin(self) -> Scores:
        """Nothing is known at first."""
        return Scores()

    def requests(self, state: BaseModel, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Ask all others."""
        assert isinstance(state, Scores)
        state.asked += 1
        others = [site for site in view.evaluators if site != contribution.site]
        return [
            EvalRequest(site, self.seconds)
            for site in [*others, *([SiteName("nobody")] if self.absent else [])]
        ]

    def weigh(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the accuracy over all who answered."""
        assert isinstance(state, Scores)
        for c in contributions:
            found = pool(list(c.reports.values())).get("accuracy")
            state.last[c.site] = found if found is not None else state.last.get(c.site, 1.0)
        return np.array([state.last[c.site] for c in contributions], dtype=np.float64)


class Turns(BaseModel):
    """Whose turn it was how often."""

    seen: dict[SiteName, int] = {}


@register("sample", "patient")
class Patient(Sampler):
    """The two sites whose updates came least often take part."""

    def begin(self) -> Turns:
        """Nobody has had a turn."""
        return Turns()

    def choose(
        self, state: BaseModel, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return at most two sites."""
        assert isinstance(state, Turns)
        return sorted(sorted(set(view.sites) - exclude), key=lambda site: state.seen.get(site, 0))[:2]

    def observe(self, state: BaseModel, contribution: Contribution) -> None:
        """Count an update."""
        assert isinstance(state, Turns)
        state.seen[contribution.site] = state.seen.get(contribution.site, 0) + 1


class Phases(BaseModel):
    """How many merges there were."""

    merges: int = 0


@register("local", "alternate")
class Alternate(Policy):
    """Every other merge only some tensors are trained."""

    tensors: tuple[str, ...] = Field(("head",), description="which")

    def begin(self) -> Phases:
        """Nothing is merged yet."""
        return Phases()

    def shape(self, state: BaseModel, site: SiteName, work: Train, view: View) -> Train:
        """Name the tensor in odd phases."""
        assert isinstance(state, Phases)
        return work.model_copy(update={"tensors": self.tensors}) if state.merges % 2 else work

    def merged(self, state: BaseModel, contributions: Sequence[Contribution], view: View) -> None:
        """Go on to the next phase."""
        assert isinstance(state, Phases)
        state.merges += 1


@register("evaluate", "one-by-one")
class OneByOne(EvalPlan):
    """One evaluator after another is asked; some findings it cannot take."""

    def begin(self) -> Turns:
        """Nobody has had a turn."""
        return Turns()

    def due(self, state: BaseModel, view: View) -> Sequence[SiteName]:
        """Ask the one whose turn it is."""
        assert isinstance(state, Turns)
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
