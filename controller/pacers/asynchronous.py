"""The asynchronous pacer: every update is committed when it comes and answered with the newest model (Metis)."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from hansa.common.errors import Stale
from hansa.common.ids import SiteName
from hansa.common.plugins import register
from hansa.common.tasks import Task
from hansa.controller.engine.parts import Action, Ask, Contribution, Draw, MergeNow, Pacer, Stop, View

PATIENCE = 3  # failures in a row after which a site is left alone until it joins again


class AsyncState(BaseModel):
    """What is under way."""

    taken: int = 0  # updates accepted
    merged: int = 0  # updates committed
    cycles: dict[SiteName, int] = {}  # tasks given to each site
    failures: dict[SiteName, int] = {}  # in a row
    reasons: dict[SiteName, str] = {}
    refused: dict[SiteName, str] = {}  # since the last update that was taken


@register("pace", "async")
class Async(Pacer):
    """No rounds: each site trains on the newest model, and its update is merged as soon as it arrives."""

    updates: int = Field(100, ge=1, strict=True, description="how many updates to merge")

    def begin(self) -> AsyncState:
        """Return the state to start from."""
        return AsyncState()

    def rounds_asked(self) -> int:
        """Return the number of updates."""
        return self.updates

    def on_start(self, state: BaseModel, draw: Draw, view: View) -> list[Action]:
        """Ask every site that is free."""
        assert isinstance(state, AsyncState)
        return [self._ask(state, site) for site in view.sites if site not in view.busy]

    def on_asked(self, state: BaseModel, task: Task) -> None:
        """Nothing to remember: an open task is all there is."""

    def on_joined(self, state: BaseModel, site: SiteName, view: View) -> list[Action]:
        """Ask a site that is new or back, unless it still has its task."""
        assert isinstance(state, AsyncState)
        state.failures.pop(site, None)
        return [self._ask(state, site)] if site in view.sites and site not in view.busy else []

    def on_result(self, state: BaseModel, contribution: Contribution, view: View) -> list[Action]:
        """Commit an update."""
        assert isinstance(state, AsyncState)
        self._require_open(state)
        state.taken += 1
        state.failures.pop(contribution.site, None)
        refused, state.refused = state.refused, {}
        return [MergeNow((contribution,), refused)]

    def on_refused(self, state: BaseModel, contribution: Contribution, reason: str, view: View) -> list[Action]:
        """Answer an update that is not taken with the newest model: the site did nothing wrong."""
        assert isinstance(state, AsyncState)
        self._require_open(state)
        state.failures.pop(contribution.site, None)
        state.refused[contribution.site] = reason
        return [self._ask(state, contribution.site)] if contribution.site in view.sites else []

    def _require_open(self, state: AsyncState) -> None:
        if state.taken >= self.updates:
            raise Stale(f"the job has its {self.updates} updates")

    def on_lost(self, state: BaseModel, task: Task, reason: str, view: View) -> list[Action]:
        """Ask a site that failed again, a few times; fail if nobody is left."""
        assert isinstance(state, AsyncState)
        state.failures[task.site] = state.failures.get(task.site, 0) + 1
        state.reasons[task.site] = reason
        if state.failures[task.site] < PATIENCE and task.site in view.sites:
            return [self._ask(state, task.site)]
        working = set(view.sites) - {site for site, count in state.failures.items() if count >= PATIENCE}
        if view.sites and not working and state.taken == state.merged:
            return [Stop(f"every site failed {PATIENCE} times in a row; {task.site}: {reason}", failed=True)]
        return []

    def on_left(self, state: BaseModel, site: SiteName, view: View) -> list[Action]:
        """Its task stays open: it may come back with the update."""
        return []

    def on_alarm(self, state: BaseModel, alarm: str, draw: Draw, view: View) -> list[Action]:
        """There are no deadlines."""
        return []

    def on_merged(self, state: BaseModel, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Give the sites whose updates were merged the newest model at once."""
        assert isinstance(state, AsyncState)
        state.merged += len(sites)
        if state.merged >= self.updates:
            return [Stop(f"all {self.updates} updates are merged")]
        return [self._ask(state, site) for site in sites if site in view.sites and site not in view.busy]

    def _ask(self, state: AsyncState, site: SiteName) -> Ask:
        state.cycles[site] = state.cycles.get(site, 0) + 1
        return Ask(site, cycle=state.cycles[site])
