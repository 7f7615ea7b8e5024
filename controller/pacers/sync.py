"""The synchronous pacer: rounds with a barrier, a deadline and a quorum (McMahan et al., 2017; Metis)."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from hansa.common.plugins.registry import register
from hansa.common.values.bounds import ROUNDS, SECONDS, SITES
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Task
from hansa.controller.plugin.actions import Action, Ask, MergeNow, NextRound, Prepare, Stop, Wake, Withdraw
from hansa.controller.plugin.parts import Draw, Pacer
from hansa.controller.plugin.view import Contribution, View


class RoundsState(BaseModel):
    """What pacers with rounds remember."""

    done: int = 0  # finished rounds


class Rounds(Pacer):
    """A pacer with common rounds, each of which ends with a merge."""

    provides: ClassVar[frozenset[str]] = frozenset({"barrier"})
    rounds: int = Field(10, ge=1, le=ROUNDS, strict=True, description="how many rounds")

    def rounds_asked(self) -> int:
        """Return the number of rounds."""
        return self.rounds

    def after_round(self, state: RoundsState) -> list[Action]:
        """Begin the next round, or stop after the last."""
        state.done += 1
        if state.done >= self.rounds:
            return [Stop(f"all {self.rounds} rounds are done" if self.rounds > 1 else "the round is done")]
        return [NextRound()]


class SyncState(RoundsState):
    """One round under way."""

    asked: dict[SiteName, TaskId] = {}
    waiting: set[SiteName] = set()  # asked and neither answered nor failed; some may be away
    received: dict[SiteName, Contribution] = {}
    lost: dict[SiteName, str] = {}
    failed: set[SiteName] = set()  # those of `lost` that said so themselves or sent a bad update
    failing: dict[SiteName, str] = {}  # all who did since an update came, in rounds before, too
    reissued: bool = False
    phase: Literal["idle", "open", "merging"] = "idle"


@register("pace", "sync")
class Sync(Rounds):
    """All sites of a round train from the same model; the round is merged when all have answered.

    At the deadline it is merged with those that have, if they are enough for the quorum. Below the quorum the
    round is issued once more, to sites that failed or are late, and then what is there is merged.
    """

    deadline: float | None = Field(
        None, gt=0, le=SECONDS, description="seconds a round may take; none: as long as sites need"
    )
    quorum: float = Field(
        0.5, gt=0, le=SITES, description="updates that a round needs: a share (≤ 1) or a number (> 1)"
    )

    @field_validator("quorum")
    @classmethod
    def _share_or_number(cls, quorum: float) -> float:
        if quorum > 1 and quorum != int(quorum):
            raise ValueError("a share up to 1, or a whole number of updates")
        return quorum

    def begin(self) -> SyncState:
        """Return the state to start from."""
        return SyncState()

    def on_start(self, state: BaseModel, draw: Draw, view: View) -> list[Action]:
        """Ask the sampled sites."""
        assert isinstance(state, SyncState)
        chosen = draw(view)
        state.asked, state.received, state.lost = {}, {}, {}
        state.failed, state.reissued, state.phase = set(), False, "open"
        state.waiting = set(chosen)
        return [*self.asks(state, chosen, view), *self._wake(state, view)]

    def asks(self, state: SyncState, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Return what the sites of a round are asked for: the job's epochs."""
        return [Ask(site) for site in sites]

    def on_asked(self, state: BaseModel, task: Task) -> None:
        """Remember the task of each site."""
        assert isinstance(state, SyncState)
        state.asked[task.site] = task.id

    def on_result(self, state: BaseModel, contribution: Contribution, view: View) -> list[Action]:
        """Take an update of this round; merge when it was the last."""
        assert isinstance(state, SyncState)
        site = contribution.site
        if (
            state.phase != "open"
            or state.asked.get(site) != contribution.task.id
            or site not in state.waiting
        ):
            raise Stale(f"round {view.round} no longer waits for {site}")
        state.waiting.remove(site)
        state.lost.pop(site, None)
        state.received[site] = contribution
        state.failing = {}
        return [Prepare(contribution), *self._close_if_complete(state, view)]

    def on_lost(self, state: BaseModel, task: Task, reason: str, view: View) -> list[Action]:
        """Go on without a site that failed."""
        assert isinstance(state, SyncState)
        if state.phase != "open" or state.asked.get(task.site) != task.id:
            return []
        state.waiting.discard(task.site)
        state.lost[task.site] = state.failing[task.site] = reason
        state.failed.add(task.site)
        return self._close_if_complete(state, view)

    def on_left(self, state: BaseModel, site: SiteName, view: View) -> list[Action]:
        """Go on without a site that is gone, if the others make a quorum; it may still come back in time."""
        assert isinstance(state, SyncState)
        if state.phase != "open" or site not in state.waiting:
            return []
        state.lost[site] = "the site left"
        return self._close_if_complete(state, view)

    def on_joined(self, state: BaseModel, site: SiteName, view: View) -> list[Action]:
        """Ask a site that failed and was away once more, if nobody who is here is awaited."""
        assert isinstance(state, SyncState)
        if state.phase != "open" or site not in state.failed:
            return []
        return self._close_if_complete(state, view)

    def on_alarm(self, state: BaseModel, alarm: str, draw: Draw, view: View) -> list[Action]:
        """At the deadline: close on quorum, or issue the round once more."""
        assert isinstance(state, SyncState)
        if state.phase != "open" or alarm != self._alarm(state, view):
            return []
        if state.reissued or self._enough(state):
            return self._close(state, f"late: no update by the deadline of {self.deadline:g} s")
        return self._reissue(state, view)

    def on_merged(self, state: BaseModel, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Begin the next round, or stop after the last."""
        assert isinstance(state, SyncState)
        state.phase = "idle"
        return self.after_round(state)

    def _alarm(self, state: SyncState, view: View) -> str:
        return f"round-{view.round}-{2 if state.reissued else 1}"

    def _wake(self, state: SyncState, view: View) -> list[Action]:
        return [Wake(self.deadline, self._alarm(state, view))] if self.deadline else []

    def _reissue(self, state: SyncState, view: View) -> list[Action]:
        """Ask those that failed again, with a deadline of their own, which the late ones have, too."""
        again = sorted(state.failed & set(view.sites))
        state.reissued = True
        state.failed -= set(again)
        state.waiting |= set(again)
        for site in again:
            del state.lost[site]
        return [*self.asks(state, again, view), *self._wake(state, view)]

    def _enough(self, state: SyncState) -> bool:
        return len(state.received) >= self._needed(state)

    def _needed(self, state: SyncState) -> int:
        share = self.quorum if self.quorum > 1 else math.ceil(self.quorum * len(state.asked) - 1e-9)
        return max(1, min(int(share), len(state.asked)))

    def _close_if_complete(self, state: SyncState, view: View) -> list[Action]:
        if any(site in view.sites for site in state.waiting):
            return []
        if not state.reissued and not self._enough(state) and state.failed & set(view.sites):
            return self._reissue(state, view)
        if (
            not state.waiting
            and not state.received
            and view.sites
            and state.failing.keys() >= set(view.sites)
        ):
            site = min(state.failing)
            return [
                Stop(
                    f"every site has failed by round {view.round}; {site}: {state.failing[site]}", failed=True
                )
            ]
        if not state.waiting or self._enough(state):
            return self._close(state, "the site left")
        return []  # below quorum: sites that are away may come back, or the deadline decides

    def _close(self, state: SyncState, reason: str) -> list[Action]:
        actions: list[Action] = []
        for site in sorted(state.waiting):
            state.lost.setdefault(site, reason)
            actions.append(Withdraw(state.asked[site], f"round closed: {state.lost[site]}"))
        state.waiting = set()
        state.phase = "merging"
        parts = tuple(state.received[site] for site in sorted(state.received))
        return [*actions, MergeNow(parts, dict(state.lost))]
