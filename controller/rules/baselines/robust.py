"""Robust aggregation: a few sites that send nonsense cannot ruin the community model.

Medians and trimmed means: Yin et al., 2018. Krum and multi-Krum: Blanchard et al., 2017.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.common.values.wording.words import counted
from hansa.controller.plugin.arithmetic import Aggregator, Coordinatewise, Selecting, TooFew
from hansa.controller.plugin.composition import Composition
from hansa.controller.rules.baselines.fedavg import FEDAVG

YIN = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018"
BLANCHARD = "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, 2017"


def _objections(part: Aggregator[Any], rule: Composition) -> list[Problem]:
    """Refuse parts that would undo the robustness."""
    problems: list[Problem] = []
    if not rule.pace.common_rounds:
        why = "without rounds, most updates of a merge may be one site's, or there is only one"
        problems.append(part.clash(rule.pace, why))
    if not rule.weigh.equal:
        why = "robust merges count every site the same, whatever it claims; use equal"
        problems.append(part.clash(rule.weigh, why))
    return problems


@register("merge", "median")
class Median(Coordinatewise):
    """The median of every number: fewer than half of the sites may be arbitrarily wrong."""

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weights, and merges of single updates."""
        return _objections(self, rule)

    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return the middle, or the mean of the two in the middle."""
        with np.errstate(over="ignore"):
            medians = np.asarray(np.median(rows, axis=0, overwrite_input=True))
        huge = ~np.isfinite(medians)  # the sum of the two overflowed, but their mean is finite
        if huge.any():
            least, most = np.sort(rows[:, huge], axis=0)[[(len(rows) - 1) // 2, len(rows) // 2]]
            medians[huge] = least / 2 + most / 2
        return medians


@register("merge", "trimmed")
class TrimmedMean(Coordinatewise):
    """The mean of every number without the largest and the smallest ones."""

    trim: float = Field(
        0.1, ge=0, lt=0.5, description="share of the sites left out at each end, rounded down"
    )

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weights, and merges of single updates."""
        return _objections(self, rule)

    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Sort, cut off both ends, and average in that order: the order of arrival does not matter.

        The mean is that of distances from the smallest number, so that equal numbers give exactly themselves.
        """
        cut = self._cut(len(rows))
        rows.sort(axis=0)
        middle = rows[cut : len(rows) - cut]
        least = middle[0].copy()
        # Where numbers are this far apart, the sum of their distances may overflow.
        huge = middle[-1] / 2 - least / 2 > np.finfo(np.float64).max / (2 * len(middle))
        shares = middle[:, huge] / len(middle)
        with np.errstate(over="ignore", invalid="ignore"):
            middle -= least
            means = np.asarray(least + middle.mean(axis=0))
        means[huge] = shares.sum(axis=0)
        return means

    def remark(self, count: int) -> str:
        """Say so if the merge was no more robust than the mean."""
        if not self.trim or self._cut(count):
            return ""
        return f"{self.kind} left nothing out: {self.trim:g} of {count} updates is less than one"

    def _cut(self, count: int) -> int:
        """Return how many numbers are left out at each end."""
        return int(self.trim * count + 1e-9)


@register("merge", "krum")
class Krum(Selecting):
    """The update that is nearest to its neighbours, or the mean of several such updates (multi-Krum).

    The score of an update is the sum of its squared distances to the n − f − 2 nearest others, over all
    parameters and statistics; the updates with the smallest scores are taken.
    """

    attackers: int = Field(
        1, ge=0, strict=True, description="f, how many sites may be wrong; a merge needs 2f + 3 updates"
    )
    chosen: int = Field(
        1, ge=0, strict=True, description="updates to average, at most all but f; 0: all but f"
    )

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weights, merges of single updates, and models of fewer sites than promised."""
        problems = _objections(self, rule)
        if 0 < self.chosen < spec.sites.together:
            used = counted(self.chosen, "update")
            why = f"merge krum makes a model of {used}; set merge.chosen to 0 or to {spec.sites.together}"
            problems.append((("sites", "together"), why))
        return problems

    def taken(self, count: int) -> int:
        """Return how many updates are averaged: at most as many as there are honest sites."""
        return max(0, min(self.chosen or count, count - self.attackers))

    def select(self, distances: np.ndarray) -> Sequence[int]:
        """Return the updates with the smallest scores; of equal ones, those of the first sites."""
        count = len(distances)
        if count < 2 * self.attackers + 3:
            raise TooFew(
                f"{count} updates came, and {2 * self.attackers + 3} are needed to outvote {self.attackers}"
            )
        others = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)
        with np.errstate(over="ignore"):  # an infinite distance is fine
            scores = others[:, : count - self.attackers - 2].sum(axis=1)
        return [int(i) for i in np.argsort(scores, kind="stable")[: self.taken(count)]]


def _robust(name: str, part: dict[str, object], summary: str, paper: str) -> Rule:
    parts = FEDAVG.parts | {"weigh": {"kind": "equal"}, "merge": part}
    return add_rule(Rule(name=name, summary=summary, paper=paper, parts=parts))


MEDIAN = _robust("median", {"kind": "median"}, "the median of the sites' updates, number by number", YIN)
TRIMMED = _robust(
    "trimmed-mean", {"kind": "trimmed"}, "the mean of the sites' updates without the extremes", YIN
)
KRUM = _robust("krum", {"kind": "krum"}, "the one update that is nearest to its neighbours", BLANCHARD)
MULTI_KRUM = _robust(
    "multi-krum",
    {"kind": "krum", "chosen": 0},
    "the mean of the updates that are near one another",
    BLANCHARD,
)
