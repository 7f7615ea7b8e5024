"""FedDAF (Duan et al., Federated Learning with Data-Agnostic Distribution Fusion, 2023).

Sites whose models have alike statistics form groups, and groups, not sites, are averaged: where many sites
share one distribution, they stop dominating the mean. Nothing changes at the sites. The arithmetic is in
`fusion`; where it departs from the paper, docs/methods/feddaf says why.

What is remembered is not p but p divided by the base weight a (`boost`). An update's weight is its base
weight times that; so without groups the merge is FedAvg's (or the plain mean), bit for bit, and with other
sites present than at the fit the weights are p restricted to them.
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
from hansa.controller.plugin.outline import Outline
from hansa.controller.plugin.parts import Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.fedavg import FEDAVG
from hansa.controller.rules.fusion.records import (
    Asked,
    Found,
    Fusing,
    Grouped,
    everybody,
    kept_words,
    statistics_name,
    travelled,
    trouble_words,
)

PAPER = "Duan et al., Federated Learning with Data-Agnostic Distribution Fusion, 2023"
MOST_NUMBERS = 16_000_000  # of all vectors together in a fit: 128 MB, and the fit holds three copies
DIGITS = 6  # of an allocation that is shown


@register("weigh", "fusion")
class Fusion(Weigher[Fusing]):
    """FedDAF: groups of sites with alike models count, not each site for itself."""

    joint: ClassVar[bool] = True
    needs_outline: ClassVar[bool] = True
    backend: Literal["vae", "em"] = Field(
        "vae",
        description="the paper's variational autoencoder, or the mixture that it begins with, which needs no torch",
    )
    stats: Literal["auto", "norm", "weights"] = Field(
        "auto",
        description="compare normalisation layers, or weights; auto: weights if there is no such layer",
    )
    base: Literal["equal", "examples", "used"] = Field(
        "equal",
        description="what updates are worth before groups are regarded: alike, or by examples at hand or used",
    )
    max_components: int = Field(15, ge=1, strict=True, description="most groups; 1 switches grouping off")
    min_clients: int = Field(
        2, ge=1, strict=True, description="least updates of a group; 1 lets a single site be one"
    )
    theta: float = Field(
        1.0, gt=0, le=1e6, description="the larger, the more equal groups count; 1 is the paper's"
    )
    max_boost: float = Field(
        4.0, ge=1, description="no update counts more than so many times its base weight"
    )
    refit: int = Field(
        10, ge=1, strict=True, description="merges from one fit to the next, unless the sites change"
    )
    patience: int = Field(
        2,
        ge=0,
        strict=True,
        description="fits that may find one group before groups that were found are given up",
    )
    memory: bool = Field(True, description="compare with the last update of sites that are not in the merge")
    adjust: Literal["steps", "none"] = Field(
        "steps", description="take away what follows from different numbers of steps"
    )
    time_limit: float = Field(
        10.0, gt=0, le=3600, description="seconds that a merge waits for a fit; then the last counts"
    )
    seed: int | None = Field(None, ge=0, strict=True, description="of the autoencoder (default: the job's)")

    @property
    def examination_seconds(self) -> float:
        """How long a merge waits for a fit."""
        return self.time_limit

    def warm_up(self) -> None:
        """Import scipy and, for the autoencoder, torch: seconds that are no part of a fit."""
        import hansa.controller.rules.fusion.fit  # noqa: F401

        if self.backend == "vae":
            from hansa.controller.rules.fusion import variational

            variational.warm_up()

    def begin(self) -> Fusing:
        """No fit was made."""
        return Fusing()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Without rounds, there are groups only among remembered updates."""
        if rule.pace.common_rounds:
            return []
        if not rule.merge.remembers:
            return [self.clash(rule.merge, "without rounds it merges one update alone; use merge latest")]
        return (
            []
            if self.memory
            else [((self.point, "memory"), f"without rounds (pace: {rule.pace.kind}) it must be true")]
        )

    def misfits(self, model: Outline) -> list[Problem]:
        """Refuse a model without normalisation layers if the job insists on them, before any site trains it."""
        from hansa.controller.rules.fusion.statistics import named_norms

        known = any(tensor.norm for tensor in model.tensors) or named_norms(
            [tensor.name for tensor in model.tensors]
        )
        if self.stats != "norm" or known:
            return []
        return [((self.point, "stats"), "the model has no normalisation layer; use weights")]

    # Before the merge: who is to be looked at.

    def question(self, state: Fusing, contributions: Sequence[Contribution], view: View) -> JsonValue:
        """Ask for a fit if one is due; in between for statistics, if a later fit may need them."""
        present = {statistics_name(c) for c in contributions}
        state.asked, state.told = None, {}
        recalled = {
            site: state.known[site] for site in sorted(state.known.keys() - present) if site in view.sites
        }
        # After a failure it is tried again in 1, 2, 4 … merges: what was slow once (a cold start) may be
        # quick now.
        wait = min(self.refit, 1 << (state.failures - 1)) if state.failures else self.refit
        due = (
            state.fits == 0
            or state.since >= wait
            or everybody(present, recalled) != state.tried
            or travelled(contributions)
        )
        # Where everybody takes part, the next fit will see them all: between fits nothing need be read.
        if not due and not (self.memory and any(site not in present for site in view.sites)):
            return None
        state.asked = Asked(
            fit=state.fits + 1 if due else None,
            seed=view.seed if self.seed is None else self.seed,
            recalled=recalled if due else {},
            forgotten=tuple(sorted(state.known.keys() - present - recalled.keys())) if due else (),
        )
        return state.asked.model_dump(mode="json")

    # On a worker: read statistics, and fit.

    def examine(
        self, question: JsonValue, contributions: Sequence[Contribution], models: Evidence
    ) -> Findings:
        """Read the statistics of models, and find groups if that is asked for."""
        from hansa.controller.rules.fusion.statistics import FALLBACK, plan

        asked = Asked.model_validate(question)
        reading = plan(models.spec, self.stats)
        vectors = {
            statistics_name(c): reading.vector(partial(models.numbers, c), asked.seed) for c in contributions
        }
        keep: dict[str, np.ndarray | None] = dict.fromkeys(asked.forgotten)
        if self.memory and not travelled(contributions):
            keep |= {site: vector for site, vector in vectors.items() if np.isfinite(vector).all()}
        grouped = None
        if asked.fit is not None:
            warning = FALLBACK if self.stats == "auto" and reading.kind == "weights" else ""
            for site in asked.recalled:
                held = models.kept(site)
                assert held is not None, f"statistics of {site} were kept"
                vectors[site] = held
            known = {
                statistics_name(c): (self._base(c), c.facts.steps) for c in contributions
            } | asked.recalled
            grouped = self._fitted(asked, vectors, known, reading.kind, warning)
        remembered = tuple(sorted(site for site, vector in keep.items() if vector is not None))
        return Findings(Found(remembered=remembered, grouped=grouped).model_dump(mode="json"), keep)

    def _fitted(
        self,
        asked: Asked,
        vectors: Mapping[SiteName, np.ndarray],
        known: Mapping[SiteName, tuple[float, int]],
        kind: str,
        warning: str,
    ) -> Grouped:
        """Fit all vectors, in the order of their sites."""
        from hansa.controller.rules.fusion.fit import Method, fit

        assert asked.fit is not None
        sites = tuple(sorted(vectors))
        base = np.array([known[site][0] for site in sites], dtype=np.float64)
        base = base / base.sum() if base.any() else np.full(len(base), 1 / len(base))
        steps = np.array([known[site][1] for site in sites])
        method = Method(
            self.backend, self.adjust, self.max_components, self.min_clients, self.theta, self.max_boost
        )
        found = fit(
            _matrix([vectors[site] for site in sites], asked.seed),
            base,
            steps,
            method,
            (asked.seed, asked.fit),
        )
        boost = np.divide(found.weights, base, out=np.ones(len(base)), where=base > 0)  # 0 of 0 is no matter
        return Grouped(
            fit=asked.fit,
            kind=kind,
            numbers=found.statistics,
            rank=found.rank,
            edge=found.edge,
            top=found.top,
            sites=sites,
            weights=tuple(found.weights.tolist()),
            boost=tuple(boost.tolist()),
            allocation=tuple(map(tuple, found.allocation.round(DIGITS).tolist())),
            shares=tuple(found.shares.tolist()),
            why=found.why,
            warning=found.warning or warning,
        )

    # After it: what follows.

    def examined(
        self,
        state: Fusing,
        contributions: Sequence[Contribution],
        facts: JsonValue,
        trouble: str,
        view: View,
    ) -> None:
        """Take a fit; if there is none, the last goes on counting."""
        assert state.asked is not None
        found = Found() if trouble else Found.model_validate(facts)
        present = {statistics_name(c): (self._base(c), c.facts.steps) for c in contributions}
        if not trouble:
            gone = set(state.asked.forgotten)
            state.known = {site: told for site, told in state.known.items() if site not in gone}
            state.known |= {site: present[site] for site in found.remembered}
        if state.asked.fit is not None:
            state.fits, state.since, state.tried = (
                state.asked.fit,
                0,
                everybody(present, state.asked.recalled),
            )
            state.failures = min(state.failures + 1, 30) if trouble else 0
        if found.grouped and self._lapses(state, found.grouped, contributions):
            state.lapses += 1
            state.told = kept_words(state, found.grouped, self.patience)
        elif found.grouped:
            state.boost = dict(zip(found.grouped.sites, found.grouped.boost, strict=True))
            state.groups, state.lapses = len(found.grouped.shares), 0
            state.version = view.version + 1
            state.told = found.grouped.shown()
        elif trouble:
            state.told = {"fit": state.fits, "of": state.version, "warning": trouble_words(state, trouble)}

    def _lapses(self, state: Fusing, found: Grouped, contributions: Sequence[Contribution]) -> bool:
        """Whether a fit found one group where there were several, and is not believed yet.

        A fit may miss groups that the one before saw, and with its weights the good fit would be lost. Slots
        are other models in every merge, so weights of theirs are never kept.
        """
        lost = len(found.shares) == 1 < state.groups and not travelled(contributions)
        return lost and state.lapses < self.patience

    def weigh(self, state: Fusing, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return base weights, each times what belonging to its group is worth."""
        state.since += 1
        state.base |= {statistics_name(c): self._base(c) for c in contributions}
        return np.array([self._worth(state, statistics_name(c)) for c in contributions], dtype=np.float64)

    def again(self, state: Fusing, sites: Sequence[SiteName]) -> Mapping[SiteName, float]:
        """Return what the last updates of sites are worth by the newest fit."""
        return {site: self._worth(state, site) for site in sites}

    def diagnostics(
        self, state: Fusing, contributions: Sequence[Contribution], view: View
    ) -> Mapping[str, JsonValue]:
        """Return who was grouped with whom; where no fit was made, which version has the one that counts."""
        return state.told or {"fit": state.fits, "of": state.version}

    def _base(self, c: Contribution) -> float:
        counts = {"equal": 1, "examples": c.facts.n_train, "used": c.facts.n_used}
        return float(counts[self.base])

    def _worth(self, state: Fusing, site: SiteName) -> float:
        return state.base.get(site, 1.0) * state.boost.get(site, 1.0)


def _matrix(vectors: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Put vectors into the rows of a matrix; of very many, only some of their numbers, so that memory suffices."""
    width, most = len(vectors[0]), max(1, MOST_NUMBERS // len(vectors))
    if width <= most:
        return np.stack(vectors)
    drawn = np.sort(np.random.default_rng([seed, width, most]).permutation(width)[:most])
    return np.stack([vector[drawn] for vector in vectors])


FEDDAF = add_rule(
    Rule(
        name="feddaf",
        summary="synchronous rounds, mean in which groups of sites with alike models count, not each site for itself",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "fusion"}},
    )
)
