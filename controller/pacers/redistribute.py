"""The redistributing pacer: models travel from site to site before they are averaged (RADFed; radfed §1, §3).

A round has m slots, which all start as the community model. In each hop every slot goes to a newly drawn site
of its own, which trains the model it receives; after S hops the slots are merged. With S = 1 this is a
synchronous round of FedAvg with equal weights.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.bounds import HOPS, ROUNDS, SECONDS, SITES
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Task
from hansa.controller.pacers.assignment import draw_for_slots, draw_one, draw_unseen
from hansa.controller.pacers.rounds import after_round
from hansa.controller.pacers.trips import Errand, Slot, Trip, require_scope
from hansa.controller.plugin.actions import (
    Action,
    Ask,
    MergeNow,
    NextHop,
    Prepare,
    Release,
    Stop,
    Wake,
    Withdraw,
)
from hansa.controller.plugin.arithmetic import Coordinatewise, Selecting
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Draw, Pacer
from hansa.controller.plugin.view import Contribution, View

TURNS = 1 << 32  # hops of a whole job that tasks can count


@register("pace", "redistribute")
class Redistribute(Pacer[Trip]):
    """In each round models travel from site to site for a number of hops and are then merged.

    A site receives the model that another site has trained, unchanged. A slot whose site fails, leaves or is
    late goes to another site; if there is none, or that one fails as well, the slot skips the hop.
    """

    common_rounds: ClassVar[bool] = True
    travels: ClassVar[bool] = True
    rounds: int = Field(10, ge=1, le=ROUNDS, strict=True, description="how many rounds")
    hops: int = Field(
        20, ge=1, le=HOPS, strict=True, description="S, how often each travelling model is trained in a round"
    )
    retries: int = Field(
        1, ge=0, le=SITES, strict=True, description="other sites to try in a hop when one fails"
    )
    catch_up: int = Field(
        0, ge=0, le=HOPS, strict=True, description="extra hops for models that were trained less often"
    )
    no_repeat: bool = Field(
        False, description="a model avoids sites that have trained it in this round, if others are left"
    )
    weight: Literal["equal", "hops"] = Field(
        "equal", description="hops: weights are multiplied by how often a model was trained in the round"
    )
    deadline: float | None = Field(
        None, gt=0, le=SECONDS, description="seconds a site may take; none: as long as it needs"
    )
    divergence: Literal["none", "weights", "delta"] = Field(
        "weights",
        description="measure how far apart the updates of each hop are: their weights, or their changes",
    )

    def begin(self) -> Trip:
        """Return the state to start from."""
        return Trip()

    @property
    def redistributes(self) -> bool:
        """Whether sites see one another's models: with one hop all train the community model."""
        return self.hops > 1

    @property
    def trainings(self) -> int:
        """How often each travelling model is trained in a round."""
        return self.hops

    def rounds_asked(self) -> int:
        """Return the number of rounds."""
        return self.rounds

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse merges that remember each site's last update, as slots have no site, and unused weights."""
        problems: list[Problem] = []
        if self.rounds * self.hops >= TURNS:
            why = f"{self.rounds} rounds of {self.hops} hops are more than the {TURNS - 1} hops of a job"
            problems.append(((self.point, "rounds"), why))
        if rule.merge.remembers:
            why = "a travelling model belongs to no site, so no site has a last update; use mean"
            problems.append(self.clash(rule.merge, why))
        if self.weight == "hops" and isinstance(rule.merge, Coordinatewise | Selecting):
            why = "counts all models the same, however often they were trained; use equal"
            problems.append(((self.point, "weight"), f"merge {rule.merge.kind} {why}"))
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn that joint weighers compare travelling models, not sites."""
        if rule.weigh.joint and self.hops > 1:
            why = f"{rule.weigh.kind} sees models that were trained at many sites: rarely useful"
            return [(("weigh",), why)]
        return []

    # Hops.

    def on_start(self, state: Trip, draw: Draw, view: View) -> list[Action]:
        """Start with as many slots as the sampler draws sites; all are the community model."""
        state.slots, state.hop, state.caught_up, state.lost = [], 0, 0, {}
        return self._begin_hop(state, draw, view)

    def on_hop(self, state: Trip, draw: Draw, view: View) -> list[Action]:
        """Find other sites for slots whose site is lost, or begin the next hop."""
        if state.phase == "open":
            return self._fill(state, draw, view)
        return self._begin_hop(state, draw, view) if state.phase in ("between", "stalled") else []

    def _begin_hop(self, state: Trip, draw: Draw, view: View) -> list[Action]:
        state.hop += 1
        state.used, state.trained, state.gone = set(), [], {}
        assigned = self._assign(state, draw, view)
        if not assigned:  # no site is connected: the hop starts when one joins
            state.hop -= 1
            state.phase = "stalled"
            return []
        state.phase = "open"
        asks = [action for slot, site in assigned.items() for action in self._ask(state, slot, site, 0, view)]
        return [*asks, *self._wake(view, state)]

    def _assign(self, state: Trip, draw: Draw, view: View) -> dict[int, SiteName]:
        """Draw a site for each slot that is due; with too few sites, slots trained least often come first."""
        if not state.slots:
            chosen = draw(view)
            state.slots = [Slot() for _ in chosen]
            return dict(enumerate(sorted(chosen)))  # all slots are equal: as in a synchronous round
        due = state.due(late=state.hop > self.hops)
        return (draw_unseen if self.no_repeat else draw_for_slots)(state, due, draw, view)

    def _fill(self, state: Trip, draw: Draw, view: View) -> list[Action]:
        """Give vacant slots to sites that were not used in this hop; slots without a site skip the hop."""
        actions: list[Action] = []
        for i, attempts in sorted(state.vacant.items()):
            site = draw_one(state, i, draw, view, state.used, attempts, self.no_repeat)
            if site is not None:
                actions += self._ask(state, i, site, attempts, view)
        state.vacant = {}
        return actions or self._close_if_complete(state, view)

    def _ask(self, state: Trip, i: int, site: SiteName, attempt: int, view: View) -> list[Action]:
        slot = state.slots[i]
        state.used.add(site)
        # The task's id is not known yet: `on_asked` fills it in.
        state.errands[site] = Errand(task=TaskId(""), slot=i, attempt=attempt)
        turn = (view.round - 1) * self.hops + min(state.hop, self.hops)
        ask = Ask(site, start=slot.held, hop=state.hop, slot=i + 1, turn=turn)
        return [ask, *(self._wake(view, state, i, attempt) if attempt else [])]

    def _wake(self, view: View, state: Trip, *which: int) -> list[Action]:
        """Set the deadline of a hop, or of a slot that was given to another site."""
        if not self.deadline:
            return []
        return [Wake(self.deadline, "-".join(map(str, ("hop", view.round, state.hop, *which))))]

    # What comes back.

    def on_asked(self, state: Trip, task: Task) -> None:
        """Remember the task of each site."""
        state.errands[task.site].task = task.id

    def on_result(self, state: Trip, contribution: Contribution, view: View) -> list[Action]:
        """Let the slot hold the update that came back."""
        site = contribution.site
        errand = state.errands.get(site)
        if state.phase != "open" or errand is None or errand.task != contribution.task.id:
            raise Stale(f"round {view.round} no longer waits for {site}")
        slot = state.slots[errand.slot]
        require_scope(slot.held, contribution)
        del state.errands[site]
        state.failed = {}
        actions: list[Action] = []
        if slot.held:
            slot.steps += slot.held.facts.steps
            if self.divergence == "delta":
                slot.before = slot.held
            else:
                actions.append(Release(slot.held.model))
        slot.held, slot.hops = contribution, slot.hops + 1
        slot.seen.add(site)
        state.trained.append(errand.slot)
        if slot.hops >= self.hops:
            actions.append(Prepare(self._weighted(slot)))
        return [*actions, *self._close_if_complete(state, view)]

    def on_lost(self, state: Trip, task: Task, reason: str, view: View) -> list[Action]:
        """Give the slot of a site that failed to another."""
        errand = state.errands.get(task.site)
        if state.phase != "open" or errand is None or errand.task != task.id:
            return []
        state.failed[task.site] = reason
        return self._vacate(state, task.site, reason, view)

    def on_left(self, state: Trip, site: SiteName, view: View) -> list[Action]:
        """Give the slot of a site that left to another; an update that the site may still send is refused."""
        if state.phase != "open" or site not in state.errands:
            return []
        withdrawn = Withdraw(state.errands[site].task, "the site left; its model goes to another site")
        return [withdrawn, *self._vacate(state, site, "the site left", view)]

    def on_joined(self, state: Trip, site: SiteName, view: View) -> list[Action]:
        """Go on if the hop was waiting for a site."""
        return [NextHop()] if state.phase == "stalled" else []

    def on_alarm(self, state: Trip, alarm: str, draw: Draw, view: View) -> list[Action]:
        """Give the slots of sites that are late to others."""
        head = f"hop-{view.round}-{state.hop}"
        if state.phase != "open" or not (alarm == head or alarm.startswith(f"{head}-")):
            return []
        which = [int(word) for word in alarm.removeprefix(head).split("-")[1:]] or None
        late = [
            site
            for site, errand in sorted(state.errands.items())
            if ([errand.slot, errand.attempt] == which if which else errand.attempt == 0)
        ]
        reason = f"late: no update within {self.deadline:g} s"
        actions: list[Action] = [Withdraw(state.errands[site].task, reason) for site in late]
        for site in late:
            actions += self._vacate(state, site, reason, view)
        return actions

    def _vacate(self, state: Trip, site: SiteName, reason: str, view: View) -> list[Action]:
        errand = state.errands.pop(site)
        state.lost[site] = state.gone[site] = reason
        if errand.attempt < self.retries:
            state.vacant[errand.slot] = errand.attempt + 1
            return [NextHop()]
        return self._close_if_complete(state, view)

    # The end of a hop and of a round.

    def _close_if_complete(self, state: Trip, view: View) -> list[Action]:
        if state.errands or state.vacant:
            return []
        untrained = not any(slot.hops for slot in state.slots)  # later, slots skip a hop in which all fail
        if untrained and view.sites and state.failed.keys() >= {*view.sites, *state.lost}:
            site, where = min(state.failed), f"hop {state.hop} of round {view.round}"
            return [Stop(f"all sites failed in {where}; {site}: {state.failed[site]}", failed=True)]
        if not state.trained and not view.sites:
            state.hop -= 1  # all sites have left: repeat the hop when one joins
            state.phase = "stalled"
            return []
        merging = state.hop >= self.hops and (state.even or state.caught_up >= self.catch_up)
        held = tuple(self._weighted(slot) for slot in state.slots if slot.held)
        actions: list[Action] = [state.ended(held, self.divergence, last=merging), *state.released()]
        if not merging:
            state.caught_up += state.hop >= self.hops
            state.phase = "between"
            return [*actions, NextHop()]
        state.phase = "merging"
        steps = sum(slot.steps for slot in state.slots if slot.held)
        return [*actions, MergeNow(held, dict(state.lost), steps)]

    def _weighted(self, slot: Slot) -> Contribution:
        assert slot.held is not None
        if self.weight == "equal":
            return slot.held
        return slot.held.model_copy(update={"factor": float(slot.hops)})

    def on_merged(self, state: Trip, sites: Sequence[SiteName], view: View) -> list[Action]:
        """Begin the next round, or stop after the last."""
        state.phase, state.slots = "idle", []
        state.done += 1
        return after_round(state.done, self.rounds)
