"""Trips: what the redistributing pacer remembers of travelling models."""

from typing import Literal

from pydantic import BaseModel

from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Train
from hansa.controller.plugin.actions import HopEnded, Release
from hansa.controller.plugin.view import Contribution


class Slot(BaseModel):
    """A travelling model."""

    hops: int = 0  # how often it was trained in this round
    held: Contribution | None = None  # its newest update; None: it is still the community model
    before: Contribution | None = None  # what `held` was trained from, while changes are compared
    steps: int = 0  # its optimizer steps in this round, without those of `held`
    seen: set[SiteName] = set()  # sites that trained it in this round


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
    used: set[SiteName] = set()  # sites asked in this hop
    trained: list[int] = []  # slots of this hop, in the order in which they came back
    gone: dict[SiteName, str] = {}  # sites that did not deliver in this hop, and why
    failed: dict[SiteName, str] = {}  # sites that failed or sent a bad update since the last update
    lost: dict[SiteName, str] = {}  # sites that did not deliver in this round

    @property
    def even(self) -> bool:
        """Whether all slots were trained equally often."""
        return len({slot.hops for slot in self.slots}) == 1

    def due(self, late: bool) -> list[int]:
        """Return the slots to train in this hop, those that lag behind first; `late`: only those."""
        most = max(slot.hops for slot in self.slots)
        due = [i for i, slot in enumerate(self.slots) if not late or slot.hops < most]
        return sorted(due, key=lambda i: (self.slots[i].hops, i))

    def ended(self, held: tuple[Contribution, ...], divergence: str, last: bool) -> HopEnded:
        """Return the record of the hop; `held` are the slots as they would be merged now."""
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
        """Release the models that updates were trained from; an order that still reads them keeps them."""
        released = [Release(slot.before.model) for slot in self.slots if slot.before]
        for slot in self.slots:
            slot.before = None
        return released


def require_scope(held: Contribution | None, new: Contribution) -> None:
    """Require the same tensors to be trained all round: of partial updates only the last one is kept."""
    if held is None:
        return
    assert isinstance(held.task.work, Train)
    assert isinstance(new.task.work, Train)
    if set(held.task.work.tensors) != set(new.task.work.tensors):
        raise ValueError("the tensors to train changed within a round; they can change only after a merge")
