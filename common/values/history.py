"""A job's history: the record of every community model, and how operators see it.

A new field is added here, once, and set where its value becomes known: while the merge is weighed (`Account`)
or when the version exists. Snapshots, `--json` and the operators' client then have it.
"""

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from hansa.common.values.bounds import Value
from hansa.common.values.digests import joined


def finite(number: float | None) -> float | None:
    """Return a number, or None for NaN and infinity, which JSON does not have."""
    return number if number is not None and math.isfinite(number) else None


Number = Annotated[float | None, BeforeValidator(finite)]
MATRIX = 100  # classes of a confusion matrix that the history keeps
LABELS = 1000  # labels or classes whose counts the history keeps


class Finding(Value):
    """The score of an update on one site's data."""

    score: Number
    n: int  # examples


class Score(Value):
    """How the weight of an update came about."""

    value: Number = None
    basis: str  # pooled; own, previous, mean of others or none if too few sites reported
    coverage: float  # share of the federation's validation examples that the score covers
    found: dict[str, Finding] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)  # sites without a usable report, and why


class SiteEvaluation(Value):
    """What one evaluator finds in a model, on its own examples."""

    examples: int
    metrics: dict[str, Number] = Field(default_factory=dict)


class Findings(BaseModel):
    """How good a model is, on how many examples, and whose reports are missing."""

    metrics: dict[str, Number] = Field(default_factory=dict)  # empty until they are computed
    examples: int = 0  # that the metrics cover
    examples_total: int | None = None  # of all evaluators of the job; None: one of them has never reported
    coverage: Number = None  # share of the examples that the metrics cover; None: the total is unknown
    # By site, once the metrics are computed; reports that do not fit the others are left out
    evaluations: dict[str, SiteEvaluation] = Field(default_factory=dict)
    # Over all sites, a row for each true class; empty if there are no classes, or more than MATRIX
    confusion: list[list[int]] = Field(default_factory=list)
    # TP, FP and FN of each label, or of each class if there are too many for a matrix; at most LABELS
    labels: list[list[int]] = Field(default_factory=list)
    # How many evaluators were drawn to stand for all (`evaluate.sites`); the total is then theirs. None: all.
    drawn: int | None = None
    # Evaluators of the job whose reports are missing, and why
    unevaluated: dict[str, str] = Field(default_factory=dict)
    # Evaluators that used tensors or a model of their site's own, and the tasks that made those.
    personal: dict[str, str] = Field(default_factory=dict)

    def measure_coverage(self) -> None:
        """Bring the coverage up to date with the numbers of examples."""
        self.coverage = self.examples / self.examples_total if self.examples_total else None


class Measured(Findings):
    """How good a model is on the examples that count and, apart from them, on those of the job's test sites.

    Nothing is decided by what the test sites find.
    """

    test: Findings | None = None  # None: the job has no test sites


class Hop(Measured):
    """One hop of a round whose models travel from site to site; its metrics are of the mean of the slots."""

    hop: int
    seconds: float  # since the job was submitted
    trained: int  # slots that were trained
    sites: list[str] = Field(default_factory=list)  # that trained them, in the order of the slots
    steps: dict[str, int] = Field(default_factory=dict)  # optimizer steps of each site
    skipped: int  # slots that were not trained
    lost: dict[str, str] = Field(default_factory=dict)  # sites whose update did not arrive, and why
    divergence: Number = None  # mean of 1 − cos over all pairs of the hop's updates, if requested
    trouble: str = ""  # why the models could not be examined


class Update(Value):
    """An update that was merged: who trained it, on how much, and what it is worth."""

    site: str
    task: str = ""
    slot: int = 0  # of the model that travelled from site to site, if models travel
    # None: it does not count, because weights were not finite; the site's last update goes on counting.
    weight: Number = None
    examples: int = 0  # that the site trains on
    used: int = 0  # examples that the training of this update went through
    steps: int = 0  # of the optimizer
    seconds: float = 0.0  # of training
    bytes_up: int = 0  # of the update as it was sent, however often parts of it had to be sent again
    loss: Number = None  # while training
    staleness: tuple[int, int] = (0, 0)  # in versions and in optimizer steps (metis-dvw §5)
    metrics: dict[str, Number] = Field(default_factory=dict)  # of the learner's plugins


class Account(BaseModel):
    """What is known about a version before it is computed: what it is made of, and why."""

    phase: str = ""  # what the rule calls this round, if its rounds differ
    # The updates that are new in it, as the pacer listed them; a site may have several
    updates: list[Update] = Field(default_factory=list)
    # Of evaluated updates: by site, or `a (slot 2)` if a has several
    scores: dict[str, Score] = Field(default_factory=dict)
    lost: dict[str, str] = Field(default_factory=dict)  # sites whose update did not arrive, and why
    note: str = ""  # which updates the aggregator chose, or why the previous model was kept
    still: bool = False  # it repeats the previous version and its moments because the weights were not finite
    # Reports of the rule's parts, by point
    diagnostics: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    prepared: JsonValue = None  # what the server update computed for its step


class Version(Measured, Account):
    """One community model: where it came from and how good it is."""

    version: int
    round: int
    seconds: float  # since the job was submitted
    digest: str = ""  # of the model
    auxiliary: str = ""  # digest of the tensors beside it, if the rule has any
    # Hash of the receipt in the job's chain that names it; empty if it came with the submission.
    receipt: str = ""
    distance: Number = None  # between its parameters and the job's reference, relative to the reference (DC)
    covered: bool = False  # the metrics cover enough examples to count (`evaluate.min_coverage`)
    # What the same evaluators find on validation data, if some of their reports are of test data. The best
    # version is chosen by it. None: no report is of test data.
    validation: Findings | None = None
    hops: list[Hop] = Field(default_factory=list)  # of its round, if models travelled from site to site
    # Of models transferred since the version before, with what was sent again or in vain.
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def stored_digest(self) -> str:
        """The digest of all that the store has under its key: the model and the tensors beside it."""
        return joined(self.digest, self.auxiliary)

    # JSON has the updates only; these are for readers that care about sites.

    @property
    def sites(self) -> dict[str, Update]:
        """The last update of each site."""
        return {update.site: update for update in self.updates}

    @property
    def contributions(self) -> dict[str, float]:
        """The weight of each site whose updates count, summed over its updates."""
        weights: dict[str, float] = {}
        for update in self.updates:
            if update.weight is not None:
                weights[update.site] = weights.get(update.site, 0.0) + update.weight
        return weights

    @property
    def steps(self) -> dict[str, int]:
        """Each site's optimizer steps, summed over its updates."""
        steps: dict[str, int] = {}
        for update in self.updates:
            steps[update.site] = steps.get(update.site, 0) + update.steps
        return steps

    @property
    def staleness(self) -> dict[str, tuple[int, int]]:
        """How stale each site's update is, the stalest if it has several."""
        stalest: dict[str, tuple[int, int]] = {}
        for update in self.updates:
            stalest[update.site] = max(update.staleness, stalest.get(update.site, update.staleness))
        return stalest


class VersionView(Version):
    """A version as operators see it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluated: bool = False  # there are metrics, and no evaluator's report is pending
    settled: bool = False  # nothing more is awaited: it is evaluated, or will not be
    final: bool = False  # nothing in it will change any more, not even by a late report
    # Updates that are new in it, even if they are left out here
    update_count: int = Field(default_factory=lambda version: len(version["updates"]))
    detailed: bool = True  # False: what single sites did and found was left out, as `brief` does

    @property
    def warnings(self) -> list[str]:
        """Warnings from the rule's parts."""
        return [str(report["warning"]) for report in self.diagnostics.values() if report.get("warning")]

    def brief(self) -> "VersionView":
        """Return the version without what single sites did and found, which grows with their number.

        Sites that are missing stay, and so do warnings of the rule's parts.
        """
        warnings = {
            point: {"warning": report["warning"]}
            for point, report in self.diagnostics.items()
            if report.get("warning")
        }
        test = brief_findings(self.test) if self.test else None
        left_out: dict[str, Any] = {"updates": [], "scores": {}, "hops": [], "prepared": None}
        validation = brief_findings(self.validation) if self.validation else None
        more = {"validation": validation, "diagnostics": warnings, "test": test, "detailed": False}
        return self.model_copy(update=left_out | _brief_findings() | more)


def _brief_findings() -> dict[str, Any]:
    return {"evaluations": {}, "confusion": [], "labels": [], "personal": {}}


def brief_findings(findings: Findings) -> Findings:
    """Return findings without those of single sites, apart from the names of the missing ones."""
    return findings.model_copy(update=_brief_findings())
