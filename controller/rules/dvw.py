"""Distributed validation weighting (Stripelis and Ambite, Accelerating Federated Learning …, 2020).

Every update is measured by the evaluators of all other sites, on data that nobody trains on, and by its own
learner. The confusion matrices are pooled, and what the update is worth is the pooled matrix's score.

The paper's micro F1 equals the pooled accuracy where an example has one label, so it is no more robust than
accuracy; `metric` offers others. Where an example may have several, TP, FP and FN of each label are pooled
instead, and it is another number. Late in training all scores are alike, and DVW is then close to equal
weights: compare the two.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import TRAIN, Rule, add_rule, register
from hansa.common.values.bounds import SECONDS
from hansa.common.values.errors import InvalidData, InvalidJob
from hansa.common.values.history import Finding, Score
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.parts import EvalRequest, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.fedavg import ASYNC_FEDAVG, FEDAVG
from hansa.controller.rules.scores import SCORES, Shape, inverse_loss, pooled, shape_of, unlike

PAPER = "Stripelis and Ambite, Accelerating Federated Learning in Heterogeneous … Environments, 2020"
EPOCHS = 4  # uf, the best of those that the paper has tried
LEAST = 1e-6  # of every update where all are worth nothing and zero=uniform: much less than any later score
SHOWN = 100  # evaluators whose findings are shown one by one
Reports = Mapping[SiteName, Evaluation]


class Worth(BaseModel):
    """What the weigher remembers."""

    last: dict[SiteName, float] = {}  # what each site's last update was worth
    examples: dict[SiteName, int] = {}  # validation examples of the sites that have ever reported
    shapes: dict[SiteName, Shape] = {}  # how many classes or labels each site has counted last
    scores: dict[SiteName, Score] = {}  # of the updates that were weighed last, by their names
    nothing: int = 0  # merges in which everything was worth nothing


@register("weigh", "dvw")
class Dvw(Weigher[Worth]):
    """An update is worth what it scores on the validation data of all sites together."""

    evaluates: ClassVar[bool] = True
    metric: Literal["micro_f1", "macro_f1", "mcc", "gmean", "inverse_loss"] = Field(
        "micro_f1",
        description="score of the pooled counts; mcc and gmean for one label per example, inverse_loss for regression",
    )
    timeout: float = Field(
        60.0, gt=0, le=SECONDS, description="seconds to wait for the evaluators of the other sites"
    )
    min_coverage: float = Field(
        0.5,
        ge=0,
        le=1,
        description="least share of all validation examples; with fewer, the site's last score counts",
    )
    zero: Literal["keep", "uniform"] = Field(
        "keep", description="if every update scores 0: keep the model, or take the plain mean"
    )

    def begin(self) -> Worth:
        """Nothing is known."""
        return Worth()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Without a validation part nobody can measure anything."""
        if spec.validation.fraction:
            return []
        return [
            (
                ("validation", "fraction"),
                "weigh: dvw needs a validation part at the sites; such as 0.05, not 0",
            )
        ]

    def requests(self, state: Worth, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Ask every other site; its learner has measured the update already (N + 1 models per update)."""
        others = {*view.evaluators, *view.sites} - {contribution.site}
        return [EvalRequest(site, self.timeout) for site in sorted(others)]

    def weigh(self, state: Worth, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the score of each."""
        found = [
            self._measured(state, c, view) for c in contributions
        ]  # a site may have trained several slots last
        known = state.last | {
            c.site: score.value
            for c, score in zip(contributions, found, strict=True)
            if score.value is not None
        }
        settled = [
            self._settled(score, c.site, state, known) for c, score in zip(contributions, found, strict=True)
        ]
        state.scores = dict(zip(_names(contributions), settled, strict=True))
        state.last |= {c.site: score.value or 0.0 for c, score in zip(contributions, settled, strict=True)}
        weights = np.array([score.value or 0.0 for score in settled], dtype=np.float64)
        if not any(weights) and not any(state.last.get(site) for site in view.standing):
            state.nothing += 1
            if self.zero == "uniform":
                weights[:] = LEAST
        return weights

    def scores(self, state: Worth, contributions: Sequence[Contribution]) -> Mapping[SiteName, Score]:
        """Return how the weights came about."""
        return {name: state.scores[name] for name in _names(contributions)}

    def _measured(self, state: Worth, c: Contribution, view: View) -> Score:
        """Score an update by what came; no value if that covers too little."""
        own = {c.site: c.facts.evaluation} if c.facts.evaluation else {}
        reports, odd = self._sound(state, {**c.reports, **own}, c.site)
        missing = {**c.unevaluated, **odd}
        state.examples |= {site: report.n for site, report in reports.items()}
        counted = {site: report for site, report in reports.items() if report.n}
        if not counted and not missing:
            raise InvalidData(
                f"no site has validation data, so nobody can say what the update of {c.site} is worth"
            )
        everybody = {*view.examples, *reports, *missing}
        coverage = _coverage(state, counted, everybody, view)
        others = counted.keys() - {c.site}
        shown = sorted(counted, key=lambda site: (site != c.site, site))[:SHOWN]
        if counted and (coverage >= self.min_coverage or not others):
            basis = "pooled" if coverage >= self.min_coverage and (others or not missing) else "own"
            value: float | None = self._score(list(counted.values()))
        else:
            value, basis = None, "none"
        return Score(
            value=value,
            basis=basis,
            coverage=coverage,
            found={site: Finding(score=self._score([counted[site]]), n=counted[site].n) for site in shown},
            missing=missing,
        )

    def _settled(self, score: Score, site: SiteName, state: Worth, known: Mapping[SiteName, float]) -> Score:
        """Put something in the place of a score that too few sites took part in."""
        if score.value is not None:
            return score
        others = [value for other, value in known.items() if other != site]
        own = score.found.get(site)
        if site in state.last:
            value, basis = state.last[site], "previous"
        elif others:
            value, basis = math.fsum(others) / len(others), "mean of others"
        elif own is not None and own.score is not None:
            value, basis = own.score, "own"
        else:
            value, basis = 0.0, "none"
        return score.model_copy(update={"value": value, "basis": basis})

    def _sound(
        self, state: Worth, reports: Reports, owner: SiteName
    ) -> tuple[dict[SiteName, Evaluation], dict[SiteName, str]]:
        """Part the reports that can be pooled from those that do not fit the others, with the reason.

        How many classes or labels there are is what most sites say, those whose findings on other updates are
        known included: where only a few answer, one that is wrong must not outvote the others. Of equally
        many those are right that the metric can score, lest one site of two ends the job, and else the owner.
        """
        if self.metric == "inverse_loss":
            wrong = {site for site, r in reports.items() if r.n and not math.isfinite(r.loss_sum)}
            sound = any(r.n for site, r in reports.items() if site not in wrong)
            if not sound:
                wrong = set()  # the model is as bad as that
            odd = dict.fromkeys(sorted(wrong), "its loss is not a number")
            return {site: r for site, r in reports.items() if site not in odd}, odd
        told = {site: shape_of(r) for site, r in reports.items() if r.n}
        state.shapes |= told
        if told and not any(size for size, _ in state.shapes.values()):
            raise InvalidJob(
                f"weigh.metric {self.metric} needs confusion matrices; use inverse_loss for regression"
            )
        votes = Counter(state.shapes.values())
        usual = max(
            votes,
            key=lambda it: (
                it[0] > 0,
                votes[it],
                self.metric in SCORES[it[1]],
                it == told.get(owner),
                -it[0],
                it[1],
            ),
            default=None,
        )
        if usual and self.metric not in SCORES[usual[1]]:
            raise InvalidJob(
                f"weigh.metric {self.metric} needs confusion matrices; use micro_f1, macro_f1 or inverse_loss where an"
                " example may have several labels"
            )
        odd = {site: unlike(shape, usual) for site, shape in told.items() if usual and shape != usual}
        return {site: r for site, r in reports.items() if site not in odd}, odd

    def _score(self, reports: Sequence[Evaluation]) -> float:
        """Pool, then score."""
        if self.metric == "inverse_loss":
            return inverse_loss(sum(r.loss_sum for r in reports) / sum(r.n for r in reports))
        _, kind = shape_of(reports[0])
        return SCORES[kind][self.metric](pooled(reports))


def _names(contributions: Sequence[Contribution]) -> list[SiteName]:
    """Call updates by their sites, and those of a site that was the last to train several slots by these, too."""
    often = Counter(c.site for c in contributions)
    return [
        SiteName(f"{c.site} (slot {c.task.slot})") if often[c.site] > 1 else c.site for c in contributions
    ]


def _coverage(state: Worth, counted: Reports, everybody: set[SiteName], view: View) -> float:
    """Return the share of the federation's validation examples that was used.

    A site that has never reported is taken to hold out as large a share of its examples as the others do.
    """
    told = sum(state.examples.get(site, 0) for site in view.examples)
    of = sum(view.examples[site] for site in view.examples if site in state.examples)
    share = told / of if of else 1.0

    def held(site: SiteName) -> float:
        return state.examples[site] if site in state.examples else share * view.examples.get(site, 0)

    expected = math.fsum(held(site) for site in sorted(everybody))
    return min(sum(report.n for report in counted.values()) / expected, 1.0) if expected else 0.0


SYNC_DVW = add_rule(
    Rule(
        name="sync-dvw",
        summary="synchronous rounds, mean weighted by each update's score on all sites' validation data",
        paper=PAPER,
        parts=FEDAVG.parts | {"weigh": {"kind": "dvw"}, TRAIN: {"kind": "epochs", "epochs": EPOCHS}},
    )
)

ASYNC_DVW = add_rule(
    Rule(
        name="async-dvw",
        summary="every update is scored by all sites and merged as it comes; each site makes the job's epochs",
        paper=PAPER,
        parts=ASYNC_FEDAVG.parts | {"weigh": {"kind": "dvw"}, TRAIN: {"kind": "epochs", "epochs": EPOCHS}},
    )
)

ASYNC_DVW_ADAPTIVE = add_rule(
    Rule(
        name="async-dvw-adaptive",
        summary="async-dvw where each site trains until its validation loss or its staleness says so (train.until)",
        paper=PAPER,
        parts=ASYNC_DVW.parts | {TRAIN: {"kind": "until", "epochs": EPOCHS}},
    )
)
