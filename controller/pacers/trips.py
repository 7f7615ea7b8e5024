"""Trips: what the redistributing pacer remembers of travelling models, and how it draws sites for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel

from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Train
from hansa.controller.plugin.actions import HopEnded, Release
from hansa.controller.plugin.parts import Draw
from hansa.controller.plugin.view import Contribution, View


class Slot(BaseModel):
    """A travelling model."""

    hops: int = 0  # trainings that it received in this round
    held: Contribution | None = None  # the update that it is by now; none: it is the community model
    before: Contribution | None = None  # what that was trained from, while it is needed to compare changes
    steps: int = 0  # optimizer steps in it that are older than `held`
    seen: set[SiteName] = set()  # who trained it in this round


class Errand(BaseModel):
    """A slot at a site."""

    task: TaskId
    slot: int
    attempt: int  # 0 is the first of the hop


class Trip(BaseModel):
    """The round under way, and how many are done."""

    done: int = 0  # finished rounds
    phase: Literal["idle", "open", "between", "stalled", "merging"] = "idle"
    slots: list[Slot] = []
    hop: int = 0  # the one under way, or the last
    caught_up: int = 0  # hops after the last, for slots that lag behind
    errands: dict[SiteName, Errand] = {}  # under way
    vacant: dict[int, int] = {}  # slots that wait for another site in this hop, with the attempts made
    used: set[SiteName] = set()  # who was asked in this hop
    trained: list[int] = []  # slots of this hop, in the order in which they came back
    gone: dict[SiteName, str] = {}  # who did not deliver in this hop, and why
    failed: dict[SiteName, str] = {}  # who said so itself or sent a bad update, since an update came
    lost: dict[SiteName, str] = {}  # who did not deliver in this round

    @property
    def even(self) -> bool:
        """Whether all slots were trained equally often."""
        return len({slot.hops for slot in self.slots}) == 1

    def due(self, late: bool) -> list[int]:
        """Return the slots to be trained in this hop, those that lag behind first; `late`: only those."""
        most = max(slot.hops for slot in self.slots)
        due = [i for i, slot in enumerate(self.slots) if not late or slot.hops < most]
        return sorted(due, key=lambda i: (self.slots[i].hops, i))

    def ended(self, held: tuple[Contribution, ...], divergence: str, last: bool) -> HopEnded:
        """Return what is to be entered of the hop; `held` are the slots as they would be merged."""
        trained = [self.slots[i] for i in sorted(self.trained)]
        return HopEnded(
            hop=self.hop,
            trained=tuple(
                (slot.held, slot.before.model if slot.before else None) for slot in trained if slot.held
            ),
            slots=held,
            skipped=len(self.slots) - len(trained),
            lost=dict(self.gone),
            divergence=divergence,
            last=last,
        )

    def released(self) -> list[Release]:
        """Let go of what updates were trained from; an order that still reads it keeps it."""
        released = [Release(slot.before.model) for slot in self.slots if slot.before]
        for slot in self.slots:
            slot.before = None
        return released


def draw_several(draw: Draw, view: View, hop: int, count: int) -> list[SiteName]:
    """Draw so many different sites, fewer only if there are not so many, in random order."""
    at = replace(view, draw=(hop,))
    chosen = draw_order(draw(at), draw, at)[:count]
    while len(chosen) < count:  # sites have left since the round began, so that the sampler draws fewer
        more = draw(replace(view, draw=(hop, 0, len(chosen))), frozenset(chosen))
        if not more:
            break
        chosen += more[: count - len(chosen)]
    order = at.rng("redistribute").permutation(len(chosen))
    return [chosen[i] for i in order]


def draw_order(chosen: Sequence[SiteName], draw: Draw, view: View) -> list[SiteName]:
    """Shuffle sites unless their order means something: whoever is first may be the only one that is taken."""
    if draw.sampler.ranks:
        return list(chosen)
    return [chosen[i] for i in view.rng("redistribute", 1).permutation(len(chosen))]


def require_scope(held: Contribution | None, new: Contribution) -> None:
    """Hold the policies to one train scope for a whole round: of partial updates only the last one is kept."""
    if held is None:
        return
    assert isinstance(held.task.work, Train)
    assert isinstance(new.task.work, Train)
    if set(held.task.work.tensors) != set(new.task.work.tensors):
        raise ValueError(
            "the tensors to be trained changed within a round; they can change only after a merge"
        )
