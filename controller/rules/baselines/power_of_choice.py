"""Power of choice (Cho, Wang and Joshi, 2020): of some candidates, those with the largest losses take part.

Before each round, candidates are drawn in proportion to their examples and report the loss of the newest
model on their training data. The mean does not correct for the choice, so it is biased on purpose: training
is faster at first, and favours sites on which the model is bad (power-of-choice §1).
"""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.plugins.registry import register
from hansa.common.values.bounds import SITES
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.wording.words import in_order, listed
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Sampler
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import how_many, too_few
from hansa.controller.rules.radfed import draw_keys


class Losses(BaseModel):
    """The candidates of the round, and what they have reported."""

    candidates: list[SiteName] = []
    reported: dict[SiteName, float] = {}

    @property
    def silent(self) -> list[SiteName]:
        """The candidates without a loss."""
        return [site for site in self.candidates if site not in self.reported]


@register("sample", "power-of-choice")
class PowerOfChoice(Sampler[Losses]):
    """Candidates are drawn in proportion to examples; those on which the newest model is worst take part."""

    ranks: ClassVar[bool] = True
    candidates: int = Field(
        10,
        ge=1,
        le=SITES,
        strict=True,
        description="d, how many sites report their loss before each round; at least as many as take part",
    )
    fraction: float = Field(0.1, gt=0, le=1, description="share of the sites that train; at least one does")

    def begin(self) -> Losses:
        """Start without losses."""
        return Losses()

    @property
    def probe(self) -> LocalPluginSpec:
        """The plugin that reports the loss of a model."""
        return LocalPluginSpec(name=STARTING_LOSS)

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse models that travel: sites would be drawn for them by the losses of another model."""
        if rule.pace.travels:
            why = "losses are those of the community model, not of the models that travel"
            return [self.clash(rule.pace, why)]
        return []

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of draws that are too small for a model."""
        return too_few(self.fraction, spec)

    def to_probe(self, state: Losses, view: View) -> Sequence[SiteName]:
        """Draw the candidates of the round."""
        count = max(self.candidates, how_many(self.fraction, view, view.sites))
        state.candidates, state.reported = _drawn(view.sites, view)[:count], {}
        return state.candidates

    def probed(self, state: Losses, site: SiteName, result: float) -> None:
        """Take a candidate's loss, if it is a number."""
        if math.isfinite(result):
            state.reported[site] = result

    def choose(
        self, state: Losses, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Return the candidates with the largest losses; if too few have reported, draw others as well.

        A candidate without a loss probably cannot train, either, so it comes last.
        """
        eligible = [site for site in view.sites if site not in exclude]
        known = [site for site in eligible if site in state.reported]
        ranked = sorted(known, key=lambda site: (-state.reported[site], site))
        others = _drawn([site for site in eligible if site not in state.candidates], view, 1)
        silent = [site for site in state.silent if site in eligible]
        return [*ranked, *others, *silent][: how_many(self.fraction, view, eligible)]

    def diagnostics(
        self, state: Losses, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Show the losses, and warn of candidates without one: nothing else tells that they do not train."""
        report: dict[str, JsonValue] = {"losses": {str(site): loss for site, loss in state.reported.items()}}
        if state.silent:
            names = listed(sorted(state.silent, key=in_order), 5)
            report["warning"] = f"power-of-choice: no loss was reported by {names}"
        return report


def _drawn(sites: Sequence[SiteName], view: View, *stream: int) -> list[SiteName]:
    """Return sites in an order drawn in proportion to their examples, without replacement."""
    examples = np.array([view.examples[site] for site in sites], dtype=np.float64)
    (keys,) = draw_keys(examples, view.rng("power-of-choice", *stream))
    return [sites[i] for i in np.argsort(-keys, kind="stable")]
