"""Robust aggregation: a few sites that send nonsense cannot carry the community model away.

Medians and trimmed means: Yin et al., 2018. Krum and multi-Krum: Blanchard et al., 2017.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins.registry import Rule, add_rule, register
from hansa.controller.plugin.arithmetic import Aggregator, Coordinatewise, Selecting, TooFew
from hansa.controller.plugin.composition import Composition
from hansa.controller.rules.fedavg import FEDAVG

YIN = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018"
BLANCHARD = "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, 2017"


def _objections(part: Aggregator[Any], rule: Composition) -> list[Problem]:
    """Refuse what would take the robustness away."""
    found: list[Problem] = []
    if not rule.pace.common_rounds:
        found.append(
            part.clash(rule.pace, "it merges one update at a time, and one has nothing to be compared with")
        )
    if not rule.weigh.equal:
        found.append(
            part.clash(rule.weigh, "every site counts the same in it, whatever the site claims; use equal")
        )
    return found


@register("merge", "median")
class Median(Coordinatewise):
    """The median of every number: fewer than half of the sites may be arbitrarily wrong."""

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weights, and merges of single updates."""
        return _objections(self, rule)

    def combine(self, rows: np.ndarray) -> np.ndarray:
        """Return the middle, or the mean of the two in the middle."""
        with np.errstate(over="ignore"):
            made = np.asarray(np.median(rows, axis=0, overwrite_input=True))
        huge = ~np.isfinite(made)  # the sum of the two is no number, but their mean is
        if huge.any():
            least, most = np.sort(rows[:, huge], axis=0)[[(len(rows) - 1) // 2, len(rows) // 2]]
            made[huge] = least / 2 + most / 2
        return made


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
        """Sort, cut both ends off, and average in that order: it does not matter who came first.

        The mean is taken from the least on, so that equal numbers give themselves.
        """
        cut = self._cut(len(rows))
        rows.sort(axis=0)
        kept = rows[cut : len(rows) - cut]
        least = kept[0].copy()
        huge = kept[-1] / 2 - least / 2 > np.finfo(np.float64).max / (
            2 * len(kept)
        )  # their sum may be no number
        shares = kept[:, huge] / len(kept)
        with np.errstate(over="ignore", invalid="ignore"):
            kept -= least
            made = np.asarray(least + kept.mean(axis=0))
        made[huge] = shares.sum(axis=0)
        return made

    def remark(self, count: int) -> str:
        """Say so where it is no more robust than the mean."""
        if not self.trim or self._cut(count):
            return ""
        return f"{self.kind} left nothing out: {self.trim:g} of {count} updates is less than one"

    def _cut(self, count: int) -> int:
        """Return how many numbers are left out at each end."""
        return int(self.trim * count + 1e-9)


@register("merge", "krum")
class Krum(Selecting):
    """The update that is nearest to its neighbours, or the mean of the few that are (multi-Krum).

    The score of an update is the sum of its squared distances to the n − f − 2 nearest others, over all
    parameters and statistics; those with the least scores are taken.
    """

    attackers: int = Field(
        1, ge=0, strict=True, description="f, how many sites may be wrong; it takes 2f + 3 updates"
    )
    chosen: int = Field(
        1, ge=0, strict=True, description="updates to average, at most all but f; 0: all but f"
    )

    def objections(self, spec: JobSpec, rule: Composition) -> list[Problem]:
        """Refuse weights, merges of single updates, and models of fewer sites than promised."""
        found = _objections(self, rule)
        if 0 < self.chosen < spec.sites.together:
            why = f"merge krum makes a model of {self.chosen}; set merge.chosen to 0 or to {spec.sites.together}"
            found.append((("sites", "together"), why))
        return found

    def taken(self, count: int) -> int:
        """Return how many updates are averaged: never so many that an attacker must be among them."""
        return max(0, min(self.chosen or count, count - self.attackers))

    def select(self, distances: np.ndarray) -> Sequence[int]:
        """Return the updates with the least scores; of equal ones, those of the first sites."""
        count = len(distances)
        if count < 2 * self.attackers + 3:
            raise TooFew(
                f"{count} updates came, and {2 * self.attackers + 3} are needed to outvote {self.attackers}"
            )
        others = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)
        with np.errstate(over="ignore"):  # infinitely far is far
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
