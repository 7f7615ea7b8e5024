"""Distributed validation weighting (Stripelis and Ambite, Accelerating Federated Learning …, 2020).

Every update is evaluated by its own learner and by the evaluators of all other sites, on data that no site
trains on. The confusion matrices are pooled, and the score of the pooled matrix is the update's weight.

Where each example has one label, the paper's micro F1 equals the pooled accuracy, so it is no more robust
than accuracy; `metric` offers alternatives. Where an example may have several labels, TP, FP and FN of each
label are pooled instead, and micro F1 differs from accuracy. Late in training all scores become similar, and
DVW comes close to equal weights: compare the two.
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
from hansa.controller.evaluation.scores import SCORES, Shape, inverse_loss, pooled, shape_of, unlike
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.naming import UpdateName, distinct_names
from hansa.controller.plugin.parts import EvalRequest, Weigher
from hansa.controller.plugin.view import Contribution, View
from hansa.controller.rules.baselines.fedavg import ASYNC_FEDAVG, FEDAVG

PAPER = "Stripelis and Ambite, Accelerating Federated Learning in Heterogeneous … Environments, 2020"
EPOCHS = 4  # uf: the best of the values that the paper tried
# The weight of every update if all score 0 and zero=uniform: much less than any later score.
LEAST = 1e-6
SHOWN = 100  # evaluators whose results are shown one by one
Reports = Mapping[SiteName, Evaluation]


class Worth(BaseModel):
    """What the weigher remembers."""

    last: dict[SiteName, float] = {}  # the score of each site's last update
    examples: dict[SiteName, int] = {}  # validation examples of the sites that have ever reported
    shapes: dict[SiteName, Shape] = {}  # how many classes or labels each site's last report counted
    scores: dict[UpdateName, Score] = {}  # of the updates in the last merge
    nothing: int = 0  # merges in which every update scored 0


@register("weigh", "dvw")
class Dvw(Weigher[Worth]):
    """An update's weight is its score on the validation data of all sites together."""

    validates: ClassVar[bool] = True
    evaluates: ClassVar[bool] = True
    metric: Literal["micro_f1", "macro_f1", "weighted_f1", "mcc", "gmean", "inverse_loss"] = Field(
        "micro_f1",
        description="score of the pooled counts; mcc and gmean take one label per example; inverse_loss also "
        "suits regression",
    )
    timeout: float = Field(
        60.0, gt=0, le=SECONDS, description="seconds to wait for the evaluators of the other sites"
    )
    min_coverage: float = Field(
        0.5,
        ge=0,
        le=1,
        description="minimum share of all validation examples; below it, the site's last score counts",
    )
    zero: Literal["keep", "uniform"] = Field(
        "keep", description="if every update scores 0: keep the model, or take the plain mean"
    )

    def begin(self) -> Worth:
        """Start without any scores."""
        return Worth()

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse jobs without validation data: updates could not be evaluated."""
        if spec.validation.fraction:
            return []
        why = "weigh: dvw needs validation data at the sites; use a fraction such as 0.05, not 0"
        return [(("validation", "fraction"), why)]

    def requests(self, state: Worth, contribution: Contribution, view: View) -> Sequence[EvalRequest]:
        """Ask every other site; the site's own learner has evaluated the update already."""
        others = {*view.evaluators, *view.sites} - {contribution.site}
        return [EvalRequest(site, self.timeout) for site in sorted(others)]

    def weigh(self, state: Worth, contributions: Sequence[Contribution], view: View) -> np.ndarray:
        """Return the score of each."""
        # One score per update, not per site: a site may have been the last to train several slots.
        own_scores = [self._own_score(state, c, view) for c in contributions]
        known = state.last | {
            c.site: score.value
            for c, score in zip(contributions, own_scores, strict=True)
            if score.value is not None
        }
        scores = [
            self._completed(score, c.site, state, known)
            for c, score in zip(contributions, own_scores, strict=True)
        ]
        state.scores = dict(zip(distinct_names(contributions), scores, strict=True))
        state.last |= {c.site: score.value or 0.0 for c, score in zip(contributions, scores, strict=True)}
        weights = np.array([score.value or 0.0 for score in scores], dtype=np.float64)
        if not any(weights) and not any(state.last.get(site) for site in view.standing):
            state.nothing += 1
            if self.zero == "uniform":
                weights[:] = LEAST
        return weights

    def scores(self, state: Worth, contributions: Sequence[Contribution]) -> Mapping[str, Score]:
        """Return how the weights came about."""
        return {str(name): state.scores[name] for name in distinct_names(contributions)}

    def _own_score(self, state: Worth, c: Contribution, view: View) -> Score:
        """Score an update by the reports about it; without a value if they cover too little."""
        own = {c.site: c.facts.evaluation} if c.facts.evaluation else {}
        # Sorted, because sums of losses depend on their order and reports arrive in any order.
        received = dict(sorted({**c.reports, **own}.items()))
        reports, odd = self._usable(state, received, c.site)
        missing = {**c.unevaluated, **odd}
        state.examples |= {site: report.n for site, report in reports.items()}
        counted = {site: report for site, report in reports.items() if report.n}
        if not counted and not missing:
            raise InvalidData(f"no site has validation data, so the update of {c.site} cannot be scored")
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

    def _completed(
        self, score: Score, site: SiteName, state: Worth, known: Mapping[SiteName, float]
    ) -> Score:
        """Give a value to a score that too few sites have reported on."""
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

    def _usable(
        self, state: Worth, reports: Reports, owner: SiteName
    ) -> tuple[dict[SiteName, Evaluation], dict[SiteName, str]]:
        """Separate the reports that can be pooled from those that do not fit the others, with the reason.

        The number of classes or labels is decided by majority, including sites that have only reported on
        other updates: where few sites report, a wrong one must not outvote the rest. A tie goes to the shape
        that the metric can score, so that one of two sites cannot end the job, and then to the update's
        owner.
        """
        if self.metric == "inverse_loss":
            wrong = {site for site, r in reports.items() if r.n and not math.isfinite(r.loss_sum)}
            if not any(r.n for site, r in reports.items() if site not in wrong):
                wrong = set()  # all agree: the model really is that bad
            odd = dict.fromkeys(sorted(wrong), "its loss is not a number")
            return {site: r for site, r in reports.items() if site not in odd}, odd
        shapes = {site: shape_of(r) for site, r in reports.items() if r.n}
        state.shapes |= shapes
        if shapes and not any(size for size, _ in state.shapes.values()):
            raise InvalidJob(
                f"weigh.metric {self.metric} needs confusion matrices; use inverse_loss for regression"
            )
        votes = Counter(state.shapes.values())
        usual = max(
            votes,
            key=lambda shape: (
                shape[0] > 0,
                votes[shape],
                self.metric in SCORES[shape[1]],
                shape == shapes.get(owner),
                -shape[0],
                shape[1],
            ),
            default=None,
        )
        if usual and self.metric not in SCORES[usual[1]]:
            raise InvalidJob(
                f"weigh.metric {self.metric} needs confusion matrices; use micro_f1, macro_f1, weighted_f1 or"
                " inverse_loss where an example may have several labels"
            )
        odd = {site: unlike(shape, usual) for site, shape in shapes.items() if usual and shape != usual}
        return {site: r for site, r in reports.items() if site not in odd}, odd

    def _score(self, reports: Sequence[Evaluation]) -> float:
        """Pool, then score."""
        if self.metric == "inverse_loss":
            return inverse_loss(sum(r.loss_sum for r in reports) / sum(r.n for r in reports))
        _, kind = shape_of(reports[0])
        return SCORES[kind][self.metric](pooled(reports))


def _coverage(state: Worth, counted: Reports, everybody: set[SiteName], view: View) -> float:
    """Return the share of the federation's validation examples that was used.

    A site that has never reported is assumed to hold out the same share of its examples as the others.
    """
    reported = sum(state.examples.get(site, 0) for site in view.examples)
    trained = sum(view.examples[site] for site in view.examples if site in state.examples)
    share = reported / trained if trained else 1.0

    def validation_examples(site: SiteName) -> float:
        return state.examples[site] if site in state.examples else share * view.examples.get(site, 0)

    expected = math.fsum(validation_examples(site) for site in sorted(everybody))
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
        summary="every update is scored by all sites and merged on arrival; sites train the job's epochs",
        paper=PAPER,
        parts=ASYNC_FEDAVG.parts | {"weigh": {"kind": "dvw"}, TRAIN: {"kind": "epochs", "epochs": EPOCHS}},
    )
)

ASYNC_DVW_ADAPTIVE = add_rule(
    Rule(
        name="async-dvw-adaptive",
        summary="async-dvw in which validation loss or staleness ends each site's training (train.until)",
        paper=PAPER,
        parts=ASYNC_DVW.parts | {TRAIN: {"kind": "until", "epochs": EPOCHS}},
    )
)
