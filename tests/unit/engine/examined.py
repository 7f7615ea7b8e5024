"""Plugins for tests that examine updates: a weigher that keeps arrays, and a policy."""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, Field, JsonValue

from hansa.common.plugins.registry import register
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Train
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.parts import Weigher
from hansa.controller.plugin.policies import Policy
from hansa.controller.plugin.view import Contribution, View


class Sizes(BaseModel):
    """The size of every site's last update, and what went wrong."""

    found: dict[SiteName, float] = {}
    troubles: list[str] = []


@register("weigh", "measured")
class Measured(Weigher[Sizes]):
    """An update weighs as much as its numbers and those of the site's last update; 1 if they are unknown."""

    tensor: str = Field("layer.weight", description="whose numbers count")

    def begin(self) -> Sizes:
        """Begin without any size."""
        return Sizes()

    def question(self, state: Sizes, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Ask for all sizes."""
        return {"tensor": self.tensor}

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Add up the numbers of every update."""
        assert isinstance(question, dict)
        name = str(question["tensor"])
        sums: dict[str, JsonValue] = {}
        keep: dict[str, np.ndarray | None] = {}
        for c in contributions:
            before = models.kept(c.site)
            size = float(np.abs(models.numbers(c, name).astype(np.float64)).sum())
            sums[c.site] = size + (float(before.sum()) if before is not None else 0.0)
            keep[c.site] = np.array([size, 0.0])
        return Findings(sums, keep)

    def examined(
        self,
        state: Sizes,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Remember the sizes."""
        state.found = {}
        if trouble:
            state.troubles.append(trouble)
        elif isinstance(facts, dict):
            state.found = {SiteName(site): float(str(size)) for site, size in facts.items()}

    def weigh(self, state: Sizes, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the sizes."""
        return np.array([state.found.get(c.site, 1.0) for c in contributions], dtype=np.float64)

    def diagnostics(
        self, state: Sizes, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Show the sizes."""
        return {
            "sizes": {c.site: state.found.get(c.site) for c in contributions},
            "troubles": len(state.troubles),
        }


class Seen(BaseModel):
    """How many examinations there were."""

    looks: int = 0


@register("local", "onlooker")
class Onlooker(Policy[Seen]):
    """Examines every second merge and changes nothing."""

    def begin(self) -> Seen:
        """Begin without examinations."""
        return Seen()

    def question(self, state: Seen, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Ask for the number of tensors."""
        return [] if view.version % 2 == 0 else None

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Count."""
        return Findings(sum(len(models.carried(c)) for c in contributions))

    def examined(
        self,
        state: Seen,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Count."""
        state.looks += 1

    def shape(self, state: Seen, site: SiteName, work: Train, view: View) -> Train:
        """Leave the work as it is."""
        return work
