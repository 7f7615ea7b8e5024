"""The asynchronous pacer: every update is merged on arrival and answered with the newest model (Metis)."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.bounds import ROUNDS
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task
from hansa.controller.plugin.actions import Action, Ask, MergeNow, Stop
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Draw, Pacer
from hansa.controller.plugin.view import Contribution, View

PATIENCE = 3  # failures in a row after which a site gets no more tasks until it joins again


def _sites(contributions: Sequence[Contribution]) -> set[SiteName]:
    return {contribution.site for contribution in contributions}


class AsyncState(BaseModel):
    """Updates and failures so far."""

    taken: int = 0  # updates accepted
    merged: int = 0  # updates merged
    held: list[Contribution] = []  # accepted, but of too few sites for a model (sites.together)
    counted: set[SiteName] = set()  # sites with an update in the model
    cycles: dict[SiteName, int] = {}  # tasks given to each site
    failures: dict[SiteName, int] = {}  # in a row
    reasons: dict[SiteName, str] = {}
    refused: dict[SiteName, str] = {}  # since the last update that was taken


@register("pace", "async")
class Async(Pacer[AsyncState]):
    """No rounds: each site trains on the newest model, and its update is merged as soon as it arrives."""

    updates: int = Field(100, ge=1, le=ROUNDS, strict=True, description="how many updates to merge")

    def begin(self) -> AsyncState:
        """Return the state to start from."""
        return AsyncState()

    def rounds_asked(self) -> int:
        """Return the number of updates."""
        return self.updates

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse a sample, and a `sites.together` that merges of single updates cannot meet."""
        problems: list[Problem] = []
        if not rule.sample.takes_all:
            why = "every site that is free is asked, so there is nothing to draw; use all"
            problems.append(self.clash(rule.sample, why))
        least = spec.sites.together
        if least > 1 and not rule.merge.remembers:
            why = f"pace async with merge {rule.merge.kind} makes a model of one site's update; use latest"
            problems.append((("sites", "together"), why))
        elif self.updates < least:
            why = f"{self.updates} updates cannot come from {least} sites (sites.together)"
            problems.append((("pace", "updates"), why))
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of parts that do little with one update at a time."""
        if rule.merge.remembers:
            return []
        problems: list[Problem] = []
        alone = "without rounds a proposal is made of one update"
        if rule.server.plain:
            why = f"{alone}, which then replaces the whole model; use incremental, or server mix"
            problems.append((("merge",), f"{rule.merge.kind}: {why}"))
        if rule.weigh.evaluates:
            why = f"{alone}, so its weight makes no difference unless it is 0"
            problems.append((("weigh",), f"{rule.weigh.kind}: {why}"))
        return problems

    def on_start(self, state: AsyncState, draw: Draw, view: View) -> list[Action]:
        """Ask every site that is free."""
        return [self._ask(state, site) for site in view.sites if site not in view.busy]

    def on_asked(self, state: AsyncState, task: Task) -> None:
        """Remember nothing: the engine knows the open tasks."""

    def on_joined(self, state: AsyncState, site: SiteName, view: View) -> list[Action]:
        """Ask a site that is new or back, unless it still has its task."""
        state.failures.pop(site, None)
        asked = site in view.busy or site in _sites(state.held)
        return [self._ask(state, site)] if site in view.sites and not asked else []

    def on_result(self, state: AsyncState, contribution: Contribution, view: View) -> list[Action]:
        """Merge an update; the first ones together, as soon as they come from enough sites."""
        self._require_open(state)
        state.taken += 1
        state.failures.pop(contribution.site, None)
        state.held.append(contribution)
        company = state.counted | _sites(state.held)
        if len(company) < view.together:
            return self._stop_if_stuck(state, view)
        merged, state.held, state.counted = tuple(state.held), [], company
        refused, state.refused = state.refused, {}
        return [MergeNow(merged, refused)]

    def on_refused(
        self, state: AsyncState, contribution: Contribution, reason: str, view: View
    ) -> list[Action]:
        """Answer an update that is not merged with the newest model: the site did nothing wrong."""
        self._require_open(state)
        state.failures.pop(contribution.site, None)
        state.refused[contribution.site] = reason
        return [self._ask(state, contribution.site)] if contribution.site in view.sites else []

    def _require_open(self, state: AsyncState) -> None:
        if state.taken >= self.updates:
            raise Stale(f"the job has its {self.updates} updates")

    def on_lost(self, state: AsyncState, task: Task, reason: str, view: View) -> list[Action]:
        """Ask a site that failed again, a few times; fail if no site is left."""
        state.failures[task.site] = state.failures.get(task.site, 0) + 1
        state.reasons[task.site] = reason
        if state.failures[task.site] < PATIENCE and task.site in view.sites:
            return [self._ask(state, task.site)]
        return self._stop_if_stuck(state, view)

    def _stop_if_stuck(self, state: AsyncState, view: View) -> list[Action]:
        """Fail if every connected site has failed too often or waits for one that has."""
        failed = {site for site, count in state.failures.items() if count >= PATIENCE}
        working = set(view.sites) - failed - _sites(state.held)
        if not failed or not view.sites or working or state.taken > state.merged + len(state.held):
            return []
        site = min(failed)
        if state.held:
            why = f"models of {view.together} sites cannot be made: {site} failed {PATIENCE} times in a row"
        else:
            why = f"all sites failed {PATIENCE} times in a row; {site}"
        return [Stop(f"{why}: {state.reasons[site]}", failed=True)]

    def on_left(self, state: AsyncState, site: SiteName, view: View) -> list[Action]:
        """Keep its task open: it may come back with the update."""
        return []

    def on_alarm(self, state: AsyncState, alarm: str, draw: Draw, view: View) -> list[Action]:
        """Do nothing: there are no deadlines."""
        return []

    def on_merged(self, state: AsyncState, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Give the sites whose updates were merged the newest model at once."""
        state.merged += len(sites)
        if state.merged >= self.updates:
            reason = f"all {self.updates} updates are merged" if self.updates > 1 else "the update is merged"
            return [Stop(reason)]
        return [self._ask(state, site) for site in sites if site in view.sites and site not in view.busy]

    def _ask(self, state: AsyncState, site: SiteName) -> Ask:
        state.cycles[site] = state.cycles.get(site, 0) + 1
        return Ask(site, cycle=state.cycles[site])
