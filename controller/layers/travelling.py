"""What travels: only what sites train, or all but what is their own (personal-models §1).

To the controller, the part that travels is the model; sites know the rest.
"""

from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import register
from hansa.common.values.bounds import COLUMNS
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import Patterns, Travel
from hansa.common.values.tasks import Train
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Nothing
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import View

EVERYTHING = "'*' matches every tensor: nothing would travel, and sites would learn nothing from one another"


class _Travelling(Policy):
    """Sends and merges a part of the model."""

    def shape(self, state: Nothing, site: SiteName, work: Train, view: View) -> Train:
        """Leave the task as it is: it is about the part that travels."""
        return work


@register("layers", "trainable")
class Trainable(_Travelling):
    """Only the tensors that the app trains travel; the rest is a backbone that is the same at every site."""

    match: Patterns = Field(
        (), description="what travels instead, as patterns of tensors' names; the rest is frozen"
    )
    personal: Patterns = Field(
        (), description="what sites train for themselves and never send, such as a head"
    )

    @property
    def travel(self) -> Travel:
        """Return what stays: the backbone, and what is personal."""
        return Travel(kind="trainable", match=self.match, personal=self.personal)

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to keep everything at the sites."""
        return [(("layers", "personal"), EVERYTHING)] if "*" in self.personal else []


@register("layers", "personal")
class Personal(_Travelling):
    """Some tensors are each site's own and never leave it (FedBN, FedPer); all others travel."""

    match: Patterns = Field((), description="what stays, as patterns of tensors' names, such as head.*")
    norm: bool = Field(False, description="normalisation layers stay")
    last: int = Field(0, ge=0, le=COLUMNS, strict=True, description="this many of the last layers stay")

    @property
    def travel(self) -> Travel:
        """Return what stays."""
        return Travel(kind="personal", match=self.match, norm=self.norm, last=self.last)

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to keep everything at the sites, and to pool statistics that sites do not send."""
        problems: list[Problem] = [(("layers", "match"), EVERYTHING)] if "*" in self.match else []
        if not (self.match or self.norm or self.last):
            why = "personal needs to know what stays at the sites: match, norm or last"
            problems.append((("layers",), why))
        if self.norm and rule.merge.pools:
            why = "pooled does not go with layers personal: normalisation layers stay at the sites"
            problems.append((("merge", "bn"), why))
        return problems
