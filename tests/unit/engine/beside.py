"""A policy with auxiliary tensors: a mean and a sum, which can be reset."""

from collections.abc import Collection, Sequence

from pydantic import BaseModel, Field

from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.auxiliary import Auxiliary
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution, View


class Seen(BaseModel):
    """What the policy was told."""

    rounds: list[int] = []
    merges: list[dict[SiteName, float]] = []  # the weights of each merge


@register("local", "beside")
class BesideTheModel(Policy[Seen]):
    """Sends a mean and a sum; the sum starts from zero again after so many merges."""

    reset_after: int = Field(0, description="merges after which the sum starts from zero again; 0: never")

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """A mean that goes both ways, and a sum."""
        return Auxiliary(name="mean"), Auxiliary(name="sum", merge="add")

    def begin(self) -> Seen:
        """Start without merges."""
        return Seen()

    def shape(self, state: Seen, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work

    def round_begins(self, state: Seen, view: View) -> None:
        """Take note of the round."""
        state.rounds.append(view.round)

    def resets(self, state: Seen) -> Collection[str]:
        """Reset the sum for the merge after `reset_after` others."""
        return ("sum",) if self.reset_after and len(state.merges) == self.reset_after else ()

    def merged(self, state: Seen, contributions: Sequence[Contribution], view: View) -> None:
        """Take note of the weights."""
        state.merges.append({c.site: c.weight for c in contributions})


@register("layers", "beside-too")
class SameName(Policy):
    """Has a set of auxiliary tensors with a name that the other policy uses."""

    def shape(self, state: BaseModel, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """A sum."""
        return (Auxiliary(name="sum"),)


@register("layers", "beside-astray")
class Astray(Policy):
    """Declares something that is not a set of auxiliary tensors."""

    def shape(self, state: BaseModel, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is."""
        return work

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        """Declare nothing, in the wrong way."""
        return None  # type: ignore[return-value]
