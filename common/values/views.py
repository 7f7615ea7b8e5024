"""What operators see: the documents behind `--json`, the live view and the tables."""

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, JsonValue

from hansa.common.job.resolved import Resolved
from hansa.common.values.tasks import Value


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


Number = Annotated[float | None, BeforeValidator(_finite)]  # JSON knows no NaN, and values take none


class Finding(Value):
    """What one site's data say of an update."""

    score: Number
    n: int  # examples


class Score(Value):
    """How the weight of an update came about."""

    value: Number = None
    basis: str  # pooled; own, previous, mean of others or none if too few sites answered
    coverage: float  # share of the federation's validation examples that it is over
    found: Mapping[str, Finding] = {}  # by site
    missing: Mapping[str, str] = {}  # sites that did not answer, or not with sense, and why


class HopView(Value):
    """One hop of a round whose models travel from site to site."""

    hop: int
    seconds: float  # since the job was submitted
    trained: int  # models
    sites: tuple[str, ...] = ()  # that trained them, in the order of the models
    steps: Mapping[str, int] = {}  # that each site's optimizer made
    skipped: int  # models that nobody trained
    lost: Mapping[str, str] = {}  # sites whose update did not come, and why
    divergence: Number = None  # mean of 1 − cos over all pairs of the hop's updates, if it is measured
    metrics: Mapping[str, Number] = {}  # of the mean of the travelling models, if that is evaluated
    examples: int = 0  # that the metrics are over
    examples_total: int | None = (
        None  # that all evaluators of the job have together; none: one has never reported
    )
    unevaluated: Mapping[str, str] = {}  # evaluators of the job whose findings are missing, and why
    trouble: str = ""  # why the models could not be looked at


class HistoryView(Value):
    """One community model: where it came from and how good it is."""

    version: int
    round: int
    seconds: float  # since the job was submitted
    digest: str = ""  # of the model
    receipt: str = ""  # hash of the receipt that names it, in the job's chain
    phase: str = ""  # what the rule calls this round, if its rounds differ
    distance: Number = (
        None  # of its parameters from the job's reference, relative to those (DC); none: no reference
    )
    metrics: Mapping[str, Number] = {}
    examples: int = 0  # that the metrics are over
    examples_total: int | None = (
        None  # that all evaluators of the job have together; none: one has never reported
    )
    covered: bool = False  # the metrics are over enough of them to count (`evaluate.min_coverage`)
    evaluated: bool = False  # there are metrics, and no evaluator is waited for any more
    unevaluated: Mapping[str, str] = {}  # evaluators of the job whose findings are missing, and why
    contributions: Mapping[str, float] = {}
    updates: int = (
        0  # that were merged: where models travel, one site may have been the last to train several
    )
    steps: Mapping[
        str, int
    ] = {}  # of each contribution: how many its site's optimizer made for it; see also `hops`
    staleness: Mapping[str, tuple[int, int]] = {}  # of each contribution, in versions and in optimizer steps
    scores: Mapping[
        str, Score
    ] = {}  # of each update, if they are evaluated: by site, or `a (slot 2)` if a has several
    lost: Mapping[str, str] = {}  # sites whose update did not come, and why
    hops: tuple[HopView, ...] = ()  # of its round, if models travelled from site to site
    note: str = ""  # what the aggregator has to say: whom it chose, or why it kept the model before
    diagnostics: Mapping[str, Mapping[str, JsonValue]] = {}  # what parts of the rule have to say, by point
    bytes_up: int = 0
    bytes_down: int = 0


def warnings(entry: HistoryView) -> list[str]:
    """Return what parts of the rule warn of."""
    return [str(told["warning"]) for told in entry.diagnostics.values() if told.get("warning")]


class SiteProgress(Value):
    """What a site is doing for a job."""

    site: str
    state: str  # idle, training, done, away, lost
    epoch: int = 0
    epochs: int = 0
    loss: Number = None
    examples: int = 0


class Shortfall(Value):
    """A site that contributed nothing or little to a job."""

    site: str
    contributed: int  # updates that were taken
    asked: int  # that it was asked for, without what was under way when the job ended
    failures: int = 0  # of its tasks; a round may be issued twice
    reason: str = ""  # of the last failure
    missed: int = 0  # versions that were made while it was away, could not be used, or was not asked any more
    known: int = 0  # versions that were made since the job first knew of it
    absence: str = ""  # why it missed them
    unfinished: bool = False  # it worked at its first task for most of the job


class SurveyView(Value):
    """What sites told of their data."""

    examples: Mapping[str, int] = {}  # of each site
    classes: Mapping[str, tuple[int, ...]] = {}  # examples of each class at each site, if it was asked for
    mean: tuple[float, ...] = ()  # of each standardised column, over all sites
    deviation: tuple[float, ...] = ()


class JobView(Value):
    """A job as operators see it."""

    job: str
    name: str
    rule: str = ""
    app: str = ""
    status: str  # waiting, running, completed, failed, cancelled
    reason: str = ""
    warnings: tuple[str, ...] = ()  # what in the job is likely not meant, though it works
    version: int = 0
    rounds: int = 0
    rounds_asked: int = 0
    unit: str = "round"  # what a merge is called: round, or update where there are no rounds
    phase: str = ""  # what the rule calls the round that is under way, if its rounds differ
    seconds: float = 0.0
    submitted: str = ""
    metrics: Mapping[str, Number] = {}  # of the newest version that was evaluated on enough examples to count
    metrics_version: int | None = None  # which version that is
    examples: int = 0  # that the metrics are over
    examples_total: int | None = None  # that all evaluators of the job had together then; none: unknown
    bytes_up: int = 0
    bytes_down: int = 0
    sites: tuple[SiteProgress, ...] = ()
    evaluators: int = 0  # that are connected and can evaluate this job's models
    shortfalls: tuple[Shortfall, ...] = ()  # sites that contributed nothing or little, and why
    survey: SurveyView | None = None
    history: tuple[HistoryView, ...] = ()
    resolved: Resolved | None = None  # the job with every default filled in, if one job was asked for

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more."""
        return self.status in ("completed", "failed", "cancelled")


class DaemonView(Value):
    """One daemon of the fleet."""

    site: str
    role: str
    state: str  # attending, away
    since: str  # when it began to be so
    why: str = ""  # it is away
    doing: tuple[str, ...] = ()
    apps: Mapping[str, str] = {}  # reference -> "ok, 300 examples, source 1f2e3d4c" or what is wrong
    sources: Mapping[str, str] = {}  # reference -> digest of the source that was loaded
    changed: tuple[str, ...] = ()  # apps whose source on disk is no longer the one that was loaded
    version: str = ""
    peer: str = ""


class StatusView(Value):
    """The controller itself."""

    controller: str
    version: str
    pid: int
    address: str
    store: str
    state: str
    since: str
    sites: int
    jobs: Mapping[str, int]
    peak_memory_mib: float
