"""The semi-synchronous pacer: rounds of equal length instead of equal work (Stripelis and Ambite, 2021)."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import ConfigDict, Field

from hansa.common.plugins.registry import register
from hansa.common.values.bounds import ASKED, SECONDS
from hansa.common.values.ids import SiteName
from hansa.controller.pacers.rounds import Rounds, RoundState
from hansa.controller.plugin.actions import Action, Ask
from hansa.controller.plugin.view import Contribution, View

LONGEST = 10_000  # epochs of the slowest site in a round


class SemiSyncState(RoundState):
    """A round under way, and each site's last measured speed."""

    seconds_per_step: dict[SiteName, float] = {}
    seconds_per_epoch: dict[SiteName, float] = {}


@register("pace", "semisync")
class SemiSync(Rounds[SemiSyncState]):
    """Every site trains for as long as the slowest needs for λ epochs, so that fast sites are not idle.

    In the first round each site trains the job's epochs, and its speed is measured. After that a site gets as
    many steps as fit into λ × the slowest site's epoch, measured again in every round.
    """

    model_config = ConfigDict(populate_by_name=True)
    sets_steps: ClassVar[bool] = True
    periods: float = Field(
        1.0, gt=0, le=LONGEST, alias="lambda", description="length of a round in epochs of the slowest site"
    )

    def begin(self) -> SemiSyncState:
        """Return the state to start from."""
        return SemiSyncState()

    def asks(self, state: SemiSyncState, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Give each site the steps that fit, or the job's epochs until its speed is known."""
        measured = {site: seconds for site, seconds in state.seconds_per_epoch.items() if site in view.sites}
        # n steps fit into an epoch of n steps, even if the quotient falls just short of n through rounding.
        length = self.periods * max(measured.values(), default=0) * (1 + 1e-9)
        fits = {site: length / state.seconds_per_step[site] for site in sites if site in measured}
        # Bounded, because the times that sites report may be absurd.
        steps = {site: max(1, int(min(number, ASKED))) for site, number in fits.items()}
        return [Ask(site, steps=steps.get(site, 0)) for site in sites]

    def on_result(self, state: SemiSyncState, contribution: Contribution, view: View) -> list[Action]:
        """Measure the site's speed, then go on as in any round."""
        actions = super().on_result(state, contribution, view)
        facts = contribution.facts
        if facts.steps and facts.epochs:
            state.seconds_per_step[contribution.site] = max(facts.seconds, 1e-6) / facts.steps
            # Bounded, because a tiny share of an epoch gives infinity, which a snapshot cannot hold.
            state.seconds_per_epoch[contribution.site] = min(max(facts.seconds, 1e-6) / facts.epochs, SECONDS)
        return actions
