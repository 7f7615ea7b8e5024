"""Rounds in which all sites train from the same model, with a deadline and a quorum."""

import math
from collections.abc import Sequence
from typing import ClassVar, Generic, Literal

from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypeVar

from hansa.common.values.bounds import ROUNDS, SECONDS, SITES
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Task
from hansa.controller.plugin.actions import Action, Ask, MergeNow, NextRound, Prepare, Stop, Wake, Withdraw
from hansa.controller.plugin.parts import Draw, Pacer
from hansa.controller.plugin.view import Contribution, View


class RoundState(BaseModel):
    """The round under way, and how many are done."""

    done: int = 0  # finished rounds
    asked: dict[SiteName, TaskId] = {}
    waiting: set[SiteName] = set()  # asked, but neither answered nor failed; some may be disconnected
    received: dict[SiteName, Contribution] = {}
    lost: dict[SiteName, str] = {}
    failed: set[SiteName] = set()  # those of `lost` that reported a failure or sent a bad update
    failing: dict[SiteName, str] = {}  # all that failed since the last update, in earlier rounds as well
    reissued: bool = False
    phase: Literal["idle", "open", "merging"] = "idle"


R = TypeVar("R", bound=RoundState, default=RoundState)


def after_round(done: int, rounds: int) -> list[Action]:
    """Begin the next round, or stop after the last."""
    if done >= rounds:
        return [Stop(f"all {rounds} rounds are done" if rounds > 1 else "the round is done")]
    return [NextRound()]


class Rounds(Pacer[R], Generic[R]):
    """A pacer with common rounds. A round is merged when all its sites have answered.

    At the deadline it is merged with the updates received, if they meet the quorum. Below the quorum the
    round is issued once more, to sites that failed or are late, and then merged with whatever was received.
    """

    common_rounds: ClassVar[bool] = True
    rounds: int = Field(10, ge=1, le=ROUNDS, strict=True, description="how many rounds")
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

    def rounds_asked(self) -> int:
        """Return the number of rounds."""
        return self.rounds

    def on_start(self, state: R, draw: Draw, view: View) -> list[Action]:
        """Ask the sampled sites."""
        chosen = draw(view)
        state.asked, state.received, state.lost = {}, {}, {}
        state.failed, state.reissued, state.phase = set(), False, "open"
        state.waiting = set(chosen)
        return [*self.asks(state, chosen, view), *self._wake(state, view)]

    def asks(self, state: R, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Return what the sites of a round are asked for: the job's epochs."""
        return [Ask(site) for site in sites]

    def on_asked(self, state: R, task: Task) -> None:
        """Remember the task of each site."""
        state.asked[task.site] = task.id

    def on_result(self, state: R, contribution: Contribution, view: View) -> list[Action]:
        """Take an update of this round; merge if it was the last."""
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

    def on_lost(self, state: R, task: Task, reason: str, view: View) -> list[Action]:
        """Go on without a site that failed."""
        if state.phase != "open" or state.asked.get(task.site) != task.id:
            return []
        state.waiting.discard(task.site)
        state.lost[task.site] = state.failing[task.site] = reason
        state.failed.add(task.site)
        return self._close_if_complete(state, view)

    def on_left(self, state: R, site: SiteName, view: View) -> list[Action]:
        """Go on without a site that left, if the others meet the quorum; it may still come back in time."""
        if state.phase != "open" or site not in state.waiting:
            return []
        state.lost[site] = "the site left"
        return self._close_if_complete(state, view)

    def on_joined(self, state: R, site: SiteName, view: View) -> list[Action]:
        """Ask a site that failed and left once more, if the round waits for no connected site."""
        if state.phase != "open" or site not in state.failed:
            return []
        return self._close_if_complete(state, view)

    def on_alarm(self, state: R, alarm: str, draw: Draw, view: View) -> list[Action]:
        """At the deadline, close the round if the quorum is met, or issue it once more."""
        if state.phase != "open" or alarm != self._alarm(state, view):
            return []
        if state.reissued or self._enough(state):
            return self._close(state, f"late: no update by the deadline of {self.deadline:g} s")
        return self._reissue(state, view)

    def on_merged(self, state: R, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Begin the next round, or stop after the last."""
        state.phase = "idle"
        state.done += 1
        return after_round(state.done, self.rounds)

    def _alarm(self, state: R, view: View) -> str:
        return f"round-{view.round}-{2 if state.reissued else 1}"

    def _wake(self, state: R, view: View) -> list[Action]:
        return [Wake(self.deadline, self._alarm(state, view))] if self.deadline else []

    def _reissue(self, state: R, view: View) -> list[Action]:
        """Ask sites that failed again, with a new deadline, which also applies to late sites."""
        again = sorted(state.failed & set(view.sites))
        state.reissued = True
        state.failed -= set(again)
        state.waiting |= set(again)
        for site in again:
            del state.lost[site]
        return [*self.asks(state, again, view), *self._wake(state, view)]

    def _enough(self, state: R) -> bool:
        return len(state.received) >= self._needed(state)

    def _needed(self, state: R) -> int:
        share = self.quorum if self.quorum > 1 else math.ceil(self.quorum * len(state.asked) - 1e-9)
        return max(1, min(int(share), len(state.asked)))

    def _close_if_complete(self, state: R, view: View) -> list[Action]:
        if any(site in view.sites for site in state.waiting):
            return []
        if not state.reissued and not self._enough(state) and state.failed & set(view.sites):
            return self._reissue(state, view)
        all_fail = bool(view.sites) and state.failing.keys() >= set(view.sites)
        if not state.waiting and not state.received and all_fail:
            site = min(state.failing)
            reason = f"all sites failed in round {view.round}; {site}: {state.failing[site]}"
            return [Stop(reason, failed=True)]
        if not state.waiting or self._enough(state):
            return self._close(state, "the site left")
        return []  # below the quorum: disconnected sites may come back, or the deadline decides

    def _close(self, state: R, reason: str) -> list[Action]:
        actions: list[Action] = []
        for site in sorted(state.waiting):
            state.lost.setdefault(site, reason)
            actions.append(Withdraw(state.asked[site], f"round closed: {state.lost[site]}"))
        state.waiting = set()
        state.phase = "merging"
        contributions = tuple(state.received[site] for site in sorted(state.received))
        return [*actions, MergeNow(contributions, dict(state.lost))]
