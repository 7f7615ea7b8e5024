"""FedDAF (Duan et al., Federated Learning with Data-Agnostic Distribution Fusion, 2023).

Sites whose models have similar statistics form groups, and the mean is over groups, not sites: many sites
that share one distribution no longer dominate it. Nothing changes at the sites. The arithmetic is in
`fusion`; docs/methods/feddaf explains where it departs from the paper.

The weigher remembers not p but p divided by the base weight a (`boost`). An update's weight is its base
weight times its boost. So without groups the merge is FedAvg's (or the plain mean), bit for bit, and if the
sites present differ from those of the fit, the weights are p restricted to them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, JsonValue

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.ids import SiteName
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.naming import UpdateName, owner_name, travelled
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.parts import Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import FEDAVG
from hansa.controller.rules.fusion.records import (
    BaseAndSteps,
    Fusing,
    Groups,
    Question,
    Result,
    fitted_names,
)

PAPER = "Duan et al., Federated Learning with Data-Agnostic Distribution Fusion, 2023"


@register("weigh", "fusion")
class Fusion(Weigher[Fusing]):
    """FedDAF: groups of sites with similar models are weighed, not each site by itself."""

    joint: ClassVar[bool] = True
    needs_outline: ClassVar[bool] = True
    backend: Literal["vae", "em"] = Field(
        "vae",
        description="the paper's variational autoencoder, or the mixture that it starts from, without torch",
    )
    stats: Literal["auto", "norm", "weights"] = Field(
        "auto",
        description="compare normalisation layers, or weights; auto: weights if there is no such layer",
    )
    base: Literal["equal", "examples", "used"] = Field(
        "equal",
        description="weights before grouping: equal, or by the examples that sites have or used",
    )
    max_components: int = Field(15, ge=1, strict=True, description="most groups; 1 switches grouping off")
    min_clients: int = Field(
        2, ge=1, strict=True, description="fewest updates in a group; 1 lets a single site be one"
    )
    theta: float = Field(
        1.0, gt=0, le=1e6, description="the larger, the more equally groups count; 1 is the paper's"
    )
    max_boost: float = Field(4.0, ge=1, description="no update counts more than this times its base weight")
    refit: int = Field(
        10, ge=1, strict=True, description="merges from one fit to the next, unless the sites change"
    )
    patience: int = Field(
        2,
        ge=0,
        strict=True,
        description="fits in a row that may find one group before known groups are dropped",
    )
    memory: bool = Field(True, description="compare with the last update of sites that are not in the merge")
    adjust: Literal["steps", "none"] = Field(
        "steps", description="remove what follows from different numbers of steps"
    )
    time_limit: float = Field(
        10.0, gt=0, le=3600, description="seconds that a merge waits for a fit; then the last one is used"
    )
    seed: int | None = Field(None, ge=0, strict=True, description="of the autoencoder (default: the job's)")

    @property
    def extras(self) -> Mapping[str, str]:
        """The autoencoder is a network of PyTorch; the mixture that it starts from is not."""
        return {"torch": "use weigh.backend: em"} if self.backend == "vae" else {}

    @property
    def examination_seconds(self) -> float:
        """How long a merge waits for a fit."""
        return self.time_limit

    def warm_up(self) -> None:
        """Import scipy and, for the autoencoder, torch, so that fits do not spend seconds on it."""
        import hansa.controller.rules.fusion.fit  # noqa: F401

        if self.backend == "vae":
            from hansa.controller.rules.fusion import variational

            variational.warm_up()

    def begin(self) -> Fusing:
        """Start without a fit."""
        return Fusing()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse merges of single updates: without rounds there are groups only among remembered updates."""
        if rule.pace.common_rounds:
            return []
        if not rule.merge.remembers:
            return [self.clash(rule.merge, "without rounds it merges one update alone; use merge latest")]
        if self.memory:
            return []
        return [((self.point, "memory"), f"must be true without rounds (pace: {rule.pace.kind})")]

    def misfits(self, model: Outline) -> list[Problem]:
        """Refuse a model without normalisation layers if the job insists on them."""
        from hansa.controller.rules.fusion.statistics import named_norms

        has_norms = any(tensor.norm for tensor in model.tensors) or named_norms(
            [tensor.name for tensor in model.tensors]
        )
        if self.stats != "norm" or has_norms:
            return []
        return [((self.point, "stats"), "the model has no normalisation layer; use weights")]

    # Before the merge: which updates to examine.

    def question(self, state: Fusing, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Ask for a fit if one is due; in between for statistics, if a later fit may need them."""
        present = {owner_name(c) for c in contributions}
        state.asked, state.report = None, {}
        recalled = {
            site: state.known[site] for site in sorted(state.known.keys() - present) if site in view.sites
        }
        seen = fitted_names(present, recalled)
        due = self._is_due(state, seen) or travelled(contributions)
        # Where all sites take part, the next fit will see all of them, so nothing has to be read before it.
        if not due and not (self.memory and any(site not in present for site in view.sites)):
            return None
        state.asked = Question(
            fit=state.fits + 1 if due else None,
            seed=view.seed if self.seed is None else self.seed,
            recalled=recalled if due else {},
            forgotten=tuple(sorted(state.known.keys() - present - recalled.keys())) if due else (),
        )
        return state.asked.model_dump(mode="json")

    def _is_due(self, state: Fusing, seen: tuple[UpdateName, ...]) -> bool:
        """Whether it is time for a fit.

        After a failure the next try comes after 1, 2, 4 … merges: what was slow once (a cold start) may be
        quick the next time.
        """
        wait = min(self.refit, 1 << (state.failures - 1)) if state.failures else self.refit
        return state.fits == 0 or state.since >= wait or seen != state.tried

    # On a worker thread: read statistics, and fit.

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Read the statistics of models, and find groups if a fit was asked for."""
        from hansa.controller.rules.fusion.statistics import FALLBACK, plan

        asked = Question.model_validate(question)
        reading = plan(models.spec, self.stats)
        vectors = {
            owner_name(c): reading.vector(partial(models.numbers, c), asked.seed) for c in contributions
        }
        keep: dict[str, np.ndarray | None] = dict.fromkeys(asked.forgotten)
        remembered: list[SiteName] = []
        if self.memory and not travelled(contributions):
            remembered = sorted(c.site for c in contributions if np.isfinite(vectors[c.site]).all())
            keep |= {site: vectors[site] for site in remembered}
        groups = None
        if asked.fit is not None:
            warning = FALLBACK if self.stats == "auto" and reading.kind == "weights" else ""
            for site in asked.recalled:
                vector = models.kept(site)
                assert vector is not None, f"statistics of {site} were kept"
                vectors[site] = vector
            groups = self._fit(asked, vectors, self._known(contributions), reading.kind, warning)
        return Findings(Result(remembered=tuple(remembered), grouped=groups).model_dump(mode="json"), keep)

    def _fit(
        self,
        asked: Question,
        vectors: Mapping[UpdateName, np.ndarray],
        present: Mapping[UpdateName, BaseAndSteps],
        kind: str,
        warning: str,
    ) -> Groups:
        from hansa.controller.rules.fusion.fit import Method
        from hansa.controller.rules.fusion.grouping import group_updates

        assert asked.fit is not None
        method = Method(
            self.backend, self.adjust, self.max_components, self.min_clients, self.theta, self.max_boost
        )
        known = dict(present)
        known.update((site, update) for site, update in asked.recalled.items())
        return group_updates(vectors, known, method, asked.fit, asked.seed, kind, warning)

    # After the examination: what follows from it.

    def examined(
        self,
        state: Fusing,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Take a fit; if there is none, the one in use stays in use."""
        asked = state.asked
        assert asked is not None
        result = Result() if trouble else Result.model_validate(facts)
        present = self._known(contributions)
        if not trouble:
            state.forget(asked.forgotten)
            state.known |= {site: present[site] for site in result.remembered}
        if asked.fit is not None:
            state.note_fit(asked.fit, fitted_names(present, asked.recalled), failed=bool(trouble))
        if result.grouped and self._is_lapse(state, result.grouped, contributions):
            state.keep(result.grouped, self.patience)
        elif result.grouped:
            state.use(result.grouped, view.version + 1)
        elif trouble:
            state.report_trouble(trouble)

    def _is_lapse(self, state: Fusing, groups: Groups, contributions: Sequence[Contribution]) -> bool:
        """Whether a fit found one group where there were several, and is not believed yet.

        A fit may miss groups that the previous one saw, and to use its weights would throw a good fit away.
        Slots hold different models in every merge, so their weights are never kept.
        """
        lost = len(groups.shares) == 1 < state.groups and not travelled(contributions)
        return lost and state.lapses < self.patience

    def weigh(self, state: Fusing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the base weight of each, times the boost of its group."""
        state.since += 1
        state.base |= {owner_name(c): self._base(c) for c in contributions}
        return np.array([self._weight(state, owner_name(c)) for c in contributions], dtype=np.float64)

    def again(self, state: Fusing, sites: Sequence[SiteName]) -> Mapping[SiteName, float]:
        """Return the weights of sites' last updates by the fit in use."""
        return {site: self._weight(state, site) for site in sites}

    def diagnostics(
        self, state: Fusing, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Return who was grouped with whom; where no fit was made, which version has the one in use."""
        return state.report or {"fit": state.fits, "of": state.version}

    def _known(self, contributions: Sequence[Contribution]) -> dict[UpdateName, BaseAndSteps]:
        return {owner_name(c): (self._base(c), c.facts.steps) for c in contributions}

    def _base(self, c: Contribution) -> float:
        counts = {"equal": 1, "examples": c.facts.n_train, "used": c.facts.n_used}
        return float(counts[self.base])

    def _weight(self, state: Fusing, name: UpdateName) -> float:
        return state.base.get(name, 1.0) * state.boost.get(name, 1.0)


FEDDAF = add_rule(
    Rule(
        name="feddaf",
        summary="synchronous rounds, mean over groups of sites with similar models instead of over sites",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "fusion"}},
    )
)
