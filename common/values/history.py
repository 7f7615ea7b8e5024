"""A job's history: what is kept of every community model, and what operators see of it.

A field is added here, once, and set where its value is known: while the merge is weighed (`Account`) or when
the version is there. Snapshots, `--json` and the operators' client have it then.
"""

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue

from hansa.common.values.bounds import Value


def finite(number: float | None) -> float | None:
    """Return a number, or None for NaN and infinity: JSON does not know them."""
    return number if number is not None and math.isfinite(number) else None


Number = Annotated[float | None, BeforeValidator(finite)]


class Finding(Value):
    """What one site's data say of an update."""

    score: Number
    n: int  # examples


class Score(Value):
    """How the weight of an update came about."""

    value: Number = None
    basis: str  # pooled; own, previous, mean of others or none if too few sites reported
    coverage: float  # share of the federation's validation examples that it is over
    found: dict[str, Finding] = {}
    missing: dict[str, str] = {}  # sites without a report that makes sense, and why


class Findings(BaseModel):
    """How good a model is, on how many examples, and whose reports are missing."""

    metrics: dict[str, Number] = {}  # empty until they are worked out
    examples: int = 0  # that the metrics are over
    examples_total: int | None = None  # of all evaluators of the job; None: one of them has never reported
    unevaluated: dict[str, str] = {}  # evaluators of the job whose reports are missing, and why


class Hop(Findings):
    """One hop of a round whose models travel from site to site; its metrics are of the mean of the slots."""

    hop: int
    seconds: float  # since the job was submitted
    trained: int  # slots
    sites: list[str] = []  # that trained them, in the order of the slots
    steps: dict[str, int] = {}  # that each site's optimizer made
    skipped: int  # slots that nobody trained
    lost: dict[str, str] = {}  # sites whose update did not come, and why
    divergence: Number = None  # mean of 1 − cos over all pairs of the hop's updates, if it is asked for
    trouble: str = ""  # why the models could not be examined


class Account(BaseModel):
    """What is known of a version before it is computed: what it is made of, and why."""

    phase: str = ""  # what the rule calls this round, if its rounds differ
    contributions: dict[str, float] = {}  # summed for a site that was the last to train several slots
    updates: int = 0  # that are new in it
    steps: dict[str, int] = {}  # of each contribution: how many its site's optimizer made
    staleness: dict[str, tuple[int, int]] = {}  # in versions and in optimizer steps (metis-dvw §5)
    scores: dict[str, Score] = {}  # of evaluated updates: by site, or `a (slot 2)` if a has several
    lost: dict[str, str] = {}  # sites whose update did not come, and why
    note: str = ""  # whom the aggregator chose, or why the model before was kept
    still: bool = False  # it is the version before, with its moments, because the weights were not finite
    diagnostics: dict[str, dict[str, JsonValue]] = {}  # what parts of the rule have to say, by point


class Version(Findings, Account):
    """One community model: where it came from and how good it is."""

    version: int
    round: int
    seconds: float  # since the job was submitted
    digest: str = ""  # of the model
    receipt: str = (
        ""  # hash of the receipt that names it, in the job's chain; empty: the submission brought it
    )
    distance: Number = None  # of its parameters from the job's reference, relative to those (DC)
    covered: bool = False  # the metrics are over enough examples to count (`evaluate.min_coverage`)
    hops: list[Hop] = []  # of its round, if models travelled from site to site
    bytes_up: int = 0
    bytes_down: int = 0


class VersionView(Version):
    """A version as operators see it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluated: bool = False  # there are metrics, and no evaluator is waited for any more

    @property
    def warnings(self) -> list[str]:
        """What parts of the rule warn of."""
        return [str(said["warning"]) for said in self.diagnostics.values() if said.get("warning")]
