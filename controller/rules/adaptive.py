"""Adaptive training (Stripelis and Ambite, 2020): how `train.until` shapes each training task.

The learner decides when its update is due (`hansa.learner.plugins.adaptive`). The controller sets its
thresholds and, after enough cycles, a limit on how stale it may become: the median of its own effective
staleness (metis-dvw §5).
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel, Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.job.training import UntilSpec
from hansa.common.methods.adaptive import ADAPTIVE, Adaptive
from hansa.common.plugins.registry import TRAIN, register
from hansa.common.values.bounds import EPOCHS
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.common.values.wording.words import in_order, listed, suggestion
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.policies import Duration
from hansa.controller.plugin.view import Contribution, View


class Staleness(BaseModel):
    """How stale each site's updates were, and how stale they may become."""

    cycles: dict[SiteName, list[int]] = {}
    limits: dict[SiteName, float] = {}


@register(TRAIN, "until")
class Until(Duration[Staleness]):
    """Sites train until their validation loss hardly falls or their model is too stale."""

    adaptive: ClassVar[bool] = True
    epochs: int = Field(1, ge=1, le=EPOCHS, strict=True, description="of a site without validation data")
    until: UntilSpec = Field(UntilSpec(), description="when a site has trained enough")

    @property
    def usual_epochs(self) -> int:
        """Return the epochs of a site without validation data."""
        return self.epochs

    def begin(self) -> Staleness:
        """Start without any measurements."""
        return Staleness()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse a pacer that sets the steps, jobs without validation data, and groups of unknown sites."""
        problems: list[Problem] = []
        if rule.pace.sets_steps:
            why = f"pace: {rule.pace.kind} sets the steps of each site, so until cannot set them as well"
            problems.append((("train", "until"), why))
        if not spec.validation.fraction:
            why = "train.until needs validation data at the sites; use a fraction such as 0.05, not 0"
            problems.append((("validation", "fraction"), why))
        known = spec.sites.names
        if known is not None:
            for name, group in self.until.groups.items():
                at = ("train", "until", "groups", name, "sites")
                unknown = [site for site in group.sites if site not in known]
                why = "is not among the job's sites.names"
                problems += [(at, f"{site} {why}" + suggestion(site, known)) for site in unknown]
        return problems

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of a limit that pulls itself down (metis-dvw §8.5)."""
        if not self.until.rolling:
            return []
        why = (
            "every task that the staleness limit ends pulls the limit down, so tasks get shorter and shorter"
        )
        return [(("train", "until", "rolling"), f"{why}; without rolling the limit is fixed")]

    def shape(self, state: Staleness, site: SiteName, work: Train, view: View) -> Train:
        """Let the learner decide, within the most epochs allowed."""
        vc_loss, tombstones = self.until.thresholds(site)
        trigger = Adaptive(
            vc_loss=vc_loss, tombstones=tombstones, limit=state.limits.get(site), epochs=work.epochs
        )
        plugin = LocalPluginSpec(name=ADAPTIVE, args=trigger.model_dump())
        return work.model_copy(update={"epochs": self.until.max_epochs, "plugins": (*work.plugins, plugin)})

    def merged(self, state: Staleness, contributions: Sequence[Contribution], view: View) -> None:
        """Record how stale each update was when it was merged."""
        for c in contributions:
            cycles = state.cycles.setdefault(c.site, [])
            if c.site in state.limits and not self.until.rolling:
                continue  # the limit is fixed: cycles that it ended would pull it down
            cycles.append(c.staleness[1])
            if len(cycles) >= self.until.cycles:
                state.limits[c.site] = float(statistics.median(cycles))

    def diagnostics(
        self, state: Staleness, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Warn with the first merge if a group names sites that have not joined: a name may be misspelt."""
        group_of = {site: name for name, group in self.until.groups.items() for site in group.sites}
        absent = sorted(group_of.keys() - view.examples.keys(), key=in_order) if view.version == 0 else []
        warnings = [
            f"{site} of group {group_of[site]} has not joined" + suggestion(site, list(view.examples))
            for site in absent
        ]
        return {"warning": f"train.until: {listed(warnings)}"} if warnings else {}

    def listens(self, state: Staleness) -> bool:
        """Whether sites need to know how far the job has come."""
        return bool(state.limits)
