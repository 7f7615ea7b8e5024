"""RADFed and its variants: models travel from site to site before they are averaged (pacer `redistribute`).

Aggregation Delayed Federated Learning (Xue et al., 2021). RADFedi draws sites by the size of their gradients.
The merge does not correct for that (by weights 1/p), so it is biased on purpose.
"""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.methods.importance import IMPORTANCE, Importance
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import Sampler
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import FEDAVG, how_many, too_few

PAPER = "Xue, Klabjan and Luo, Aggregation Delayed Federated Learning, 2021"
FLOOR = 1e-12  # smallest score of a site, as a share of the largest
LARGEST = 1e100  # score that a site may claim: sums of scores must stay finite


class Scores(BaseModel):
    """How large the gradients of each site were; a site that leaves keeps its score."""

    seen: dict[SiteName, float] = {}


@register("sample", "importance")
class ByImportance(Sampler[Scores]):
    """Sites are drawn without replacement in proportion to scores: those with large gradients more often.

    A score is the mean squared norm of the gradients at the weights that a site has trained, p ← (1 − γ)·p +
    γ·p_new. Learners measure it with every task; the job has to set nothing for that.
    """

    ranks: ClassVar[bool] = True
    fraction: float = Field(0.1, gt=0, le=1, description="share of the sites; at least one is drawn")
    gamma: float = Field(0.9, ge=0, le=1, description="γ, how much the newest measurement counts")
    init: Literal["mean", "probe"] = Field(
        "mean",
        description="a new site starts with the mean of all scores; or all sites measure the first model",
    )
    per_example: bool = Field(
        False, description="norms of single examples' gradients; many times as expensive"
    )
    online: bool = Field(
        False,
        description="norms of the last epoch's gradients during training: free, but not of the final model",
    )
    layers: tuple[str, ...] = Field((), description="only gradients of these modules, such as the classifier")

    def begin(self) -> Scores:
        """Start without scores."""
        return Scores()

    @property
    def plugins(self) -> tuple[LocalPluginSpec, ...]:
        """The learner's plugin that measures gradients."""
        arguments = Importance(per_example=self.per_example, online=self.online, layers=self.layers)
        return (LocalPluginSpec(name=IMPORTANCE, args=arguments.model_dump(mode="json")),)

    @property
    def probe(self) -> LocalPluginSpec:
        """The plugin that measures a model."""
        return self.plugins[0]

    def to_probe(self, state: Scores, view: View) -> Sequence[SiteName]:
        """Have all sites measure the first model, if the job wants that."""
        return view.sites if self.init == "probe" and view.round == 1 else ()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse to measure single examples during training."""
        if self.online and self.per_example:
            why = "training only has gradients of whole batches; leave per_example out"
            return [((self.point, "online"), why)]
        return []

    def warnings(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Warn of draws that are too small for a model."""
        return too_few(self.fraction, spec)

    def choose(
        self, state: Scores, view: View, exclude: AbstractSet[SiteName] = frozenset()
    ) -> Sequence[SiteName]:
        """Draw the sites with the largest keys."""
        eligible = [site for site in view.sites if site not in exclude]
        usual = math.fsum(state.seen.values()) / len(state.seen) if state.seen else 1.0
        scores = np.array([state.seen.get(site, usual) for site in eligible], dtype=np.float64)
        (keys,) = draw_keys(scores, view.rng("importance"))
        order = np.argsort(-keys, kind="stable")
        return [eligible[i] for i in order[: how_many(self.fraction, view, eligible)]]

    def observe(self, state: Scores, contribution: Contribution) -> None:
        """Take the score of an update, merged or not."""
        importance = contribution.facts.metrics.get(IMPORTANCE)
        if importance is not None:
            self._enter(state, contribution.site, importance)

    def probed(self, state: Scores, site: SiteName, result: float) -> None:
        """Take a site's first score."""
        self._enter(state, site, result)

    def _enter(self, state: Scores, site: SiteName, new: float) -> None:
        """Take a site's first score as it is, and average later ones; ignore values that cannot be scores."""
        if not math.isfinite(new) or new < 0:
            return
        new = min(new, LARGEST)
        known = site in state.seen
        state.seen[site] = (1 - self.gamma) * state.seen[site] + self.gamma * new if known else new


def draw_keys(scores: np.ndarray, chance: np.random.Generator, draws: int = 1) -> np.ndarray:
    """Return a key for every site in every draw: log p + Gumbel noise.

    Taking the largest keys draws sites one after the other, without replacement, in proportion to p.
    """
    top = scores.max(initial=0.0)
    known = np.maximum(scores / top, FLOOR) if top > 0 else np.ones(len(scores))
    return np.asarray(np.log(known) + chance.gumbel(size=(draws, len(scores))))


def _radfed(name: str, summary: str, parts: dict[str, dict[str, object]]) -> Rule:
    usual: dict[str, dict[str, object]] = {
        "pace": {"kind": "redistribute"},
        "sample": {"kind": "uniform", "fraction": 0.1},
        "weigh": {"kind": "equal"},
    }
    return add_rule(Rule(name=name, summary=summary, paper=PAPER, parts=FEDAVG.parts | usual | parts))


RADFED = _radfed("radfed", "models travel from site to site before they are averaged with equal weights", {})
RADFED_P = _radfed(
    "radfed-p",
    "RADFed with a proximal term: each site stays near the model it received",
    {"local": {"kind": "proximal"}},
)
RADFED_M = _radfed(
    "radfed-m",
    "RADFed whose community model moves only a share of the way to the mean",
    {"server": {"kind": "mix"}},
)
RADFED_A = _radfed("radfed-a", "RADFed with Adam at the server", {"server": {"kind": "adam"}})
RADFED_I = _radfed(
    "radfed-i",
    "RADFed that draws sites in proportion to how large their gradients are",
    {"sample": {"kind": "importance"}},
)
