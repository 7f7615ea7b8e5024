"""The asynchronous pacer: updates are merged on arrival (Metis), or a buffer of them at a time (FedBuff).

Sites never wait for a merge that their update does not start: they go on from the newest model at once.
"""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.bounds import ROUNDS, SITES
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task
from hansa.controller.plugin.actions import Action, Ask, MergeNow, Prepare, Stop
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
    held: list[Contribution] = []  # accepted, but not enough for a merge, or of too few sites for a model
    counted: set[SiteName] = set()  # sites with an update in the model
    cycles: dict[SiteName, int] = {}  # tasks given to each site
    failures: dict[SiteName, int] = {}  # in a row
    reasons: dict[SiteName, str] = {}
    refused: dict[SiteName, str] = {}  # since the last update that was taken


@register("pace", "async")
class Async(Pacer[AsyncState]):
    """No rounds: each site trains on the newest model, and updates are merged as soon as they arrive."""

    updates: int = Field(100, ge=1, le=ROUNDS, strict=True, description="how many updates to merge")
    buffer: int = Field(
        1, ge=1, le=SITES, strict=True, description="updates in a merge, no matter which sites they come from"
    )

    def begin(self) -> AsyncState:
        """Return the state to start from."""
        return AsyncState()

    @property
    def unit(self) -> str:
        """What operators call a merge."""
        return "update" if self.buffer == 1 else "merge"

    def rounds_asked(self) -> int:
        """Return the number of merges; the last one may be smaller than the others."""
        return -(-self.updates // self.buffer)

    def updates_asked(self) -> int:
        """Return the number of updates."""
        return self.updates

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse a sample, and merges of updates that cannot be merged together."""
        problems: list[Problem] = []
        if not rule.sample.takes_all:
            why = "every site that is free is asked, so there is nothing to draw; use all"
            problems.append(self.clash(rule.sample, why))
        if self.buffer > 1 and rule.merge.remembers:
            why = "only a site's last update counts, but a buffer may have several of its updates; use delta"
            problems.append(self.clash(rule.merge, why))
        least = spec.sites.together
        if self.buffer < least and not rule.merge.remembers:
            few = "one site's update" if self.buffer == 1 else f"{self.buffer} updates"
            use = f"latest or pace.buffer {least}" if self.buffer == 1 else f"pace.buffer {least}"
            why = f"pace async with merge {rule.merge.kind} makes a model of {few}; use {use}"
            problems.append((("sites", "together"), why))
        elif self.updates < least:
            why = f"{self.updates} updates cannot come from {least} sites (sites.together)"
            problems.append((("pace", "updates"), why))
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of a buffer that never fills, and of parts that do little with one update at a time."""
        if self.buffer > self.updates:
            few = f"{self.updates} updates never fill it, so there is a single merge"
            return [(("pace", "buffer"), f"{few}; a smaller buffer makes several models")]
        if rule.merge.remembers or self.buffer > 1:
            return []
        problems: list[Problem] = []
        alone = "without rounds a proposal is made of one update"
        if not rule.builds_on_current:
            why = f"{alone}, which then replaces the whole model; use incremental, or server mix"
            problems.append((("merge",), f"{rule.merge.kind}: {why}"))
        if rule.weigh.evaluates and not rule.merge.absolute:
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
        asked = site in view.busy or site in self._waiting(state, view)
        return [self._ask(state, site)] if site in view.sites and not asked else []

    def on_result(self, state: AsyncState, contribution: Contribution, view: View) -> list[Action]:
        """Merge an update, with others if a merge takes several or its model needs several sites."""
        self._require_open(state, view)
        state.taken += 1
        state.failures.pop(contribution.site, None)
        state.held.append(contribution)
        prepared: list[Action] = [Prepare(contribution)]
        if self._waiting(state, view):
            return prepared + self._stop_if_stuck(state, view)
        if not self._is_full(state):
            free = contribution.site in view.sites
            return [*prepared, self._ask(state, contribution.site)] if free else prepared
        state.counted |= _sites(state.held)
        merged, state.held = tuple(state.held), []
        refused, state.refused = state.refused, {}
        return [MergeNow(merged, refused)]

    def _is_full(self, state: AsyncState) -> bool:
        """Whether there are enough updates for a merge; the last one takes what is left."""
        return len(state.held) >= self.buffer or state.taken >= self.updates

    def _company(self, state: AsyncState) -> set[SiteName]:
        """Return the sites that the next model would be made of."""
        # In a buffer every update counts once; alone, an update joins the last ones of other sites.
        return _sites(state.held) | (state.counted if self.buffer == 1 else set())

    def _waiting(self, state: AsyncState, view: View) -> set[SiteName]:
        """Return the sites whose updates wait for those of other sites (`sites.together`)."""
        if view.together == 1 or not state.held or not self._is_full(state):
            return set()
        return _sites(state.held) if len(self._company(state)) < view.together else set()

    def on_refused(
        self, state: AsyncState, contribution: Contribution, reason: str, view: View
    ) -> list[Action]:
        """Answer an update that is not merged with the newest model: the site did nothing wrong."""
        self._require_open(state, view)
        state.failures.pop(contribution.site, None)
        state.refused[contribution.site] = reason
        return [self._ask(state, contribution.site)] if contribution.site in view.sites else []

    def _require_open(self, state: AsyncState, view: View) -> None:
        """Refuse more updates than the job is to have, unless the last ones come from too few sites."""
        if state.taken >= self.updates and not self._waiting(state, view):
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
        waiting = self._waiting(state, view)
        working = set(view.sites) - failed - waiting
        if not failed or not view.sites or working or state.taken > state.merged + len(state.held):
            return []
        site = min(failed)
        if waiting:
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
        """Give the newest model to the sites whose updates were merged, unless they have gone on already."""
        state.merged += len(sites)
        if state.merged >= self.updates:
            reason = f"all {self.updates} updates are merged" if self.updates > 1 else "the update is merged"
            return [Stop(reason)]
        waiting = self._waiting(state, view)
        return [
            self._ask(state, site)
            for site in dict.fromkeys(sites)
            if site in view.sites and site not in view.busy and site not in waiting
        ]

    def _ask(self, state: AsyncState, site: SiteName) -> Ask:
        state.cycles[site] = state.cycles.get(site, 0) + 1
        return Ask(site, cycle=state.cycles[site])
