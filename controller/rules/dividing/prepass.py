"""The pre-pass of Divide-and-Conquer: compares the layers of sites' models and reports where to divide."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import JsonValue

from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.view import Contribution
from hansa.controller.rules.dividing.divergence import METRICS, Divergences, Metric, divergences, draw_pairs
from hansa.controller.rules.dividing.layers import Layers
from hansa.controller.rules.dividing.splitting import Candidate, Choice, Scale, choose_split


def comparison(layers: Layers, models: int, rng: np.random.Generator) -> JsonValue:
    """Return what an examination has to compare: each layer's matrices, in pairs of models."""
    pairs: list[JsonValue] = [[i, j] for i, j in draw_pairs(models, rng)]
    return {"layers": layers.matrices(), "pairs": pairs}


def compare(question: JsonValue, contributions: Sequence[Contribution], models: Evidence) -> Findings:
    """Return the divergence of every layer by every metric."""
    asked: Any = question
    pairs = [(int(i), int(j)) for i, j in asked["pairs"]]
    by_metric: dict[str, list[float | None]] = {metric: [] for metric in METRICS}
    for tensors in asked["layers"]:
        pieces = (rows for tensor in tensors for rows in models.rows(contributions, tensor))
        for metric, value in divergences(pieces, pairs, len(contributions)).items():
            by_metric[metric].append(value)
    facts: dict[str, Any] = {"divergences": by_metric, "sites": len(contributions), "pairs": len(pairs)}
    return Findings(facts)


@dataclass(frozen=True)
class Chooser:
    """Chooses a split from the divergences of an examination."""

    metric: Metric
    min_ratio: float
    scale: Scale
    margin: float
    splits: Sequence[int]  # to choose from

    def choice(self, found: Mapping[str, Divergences], metric: Metric | None = None) -> Choice:
        """Return where a metric would divide; by default the metric that decides."""
        return choose_split(
            found[metric or self.metric], self.min_ratio, self.splits, self.scale, self.margin
        )

    def report(self, found: Mapping[str, Divergences]) -> dict[str, JsonValue]:
        """Return where every metric would divide."""
        choices = self._choices(found)
        return {
            "splits": {metric: choice.split for metric, choice in choices.items()},
            "clear": {metric: choice.clear for metric, choice in choices.items()},
            "best": {metric: _shown(choice.best) for metric, choice in choices.items()},
            "runner_up": {metric: _shown(choice.runner_up) for metric, choice in choices.items()},
        }

    def warning(self, found: Mapping[str, Divergences]) -> str:
        """Say so if no split is clear or the metrics disagree; otherwise return an empty text."""
        choices = self._choices(found)
        deciding = choices[self.metric]
        warnings = [] if deciding.clear else [f"no clear split by {self.metric}: {deciding.doubt}"]
        if len({choice.split for choice in choices.values()}) > 1:
            splits = ", ".join(f"{metric} after layer {choice.split}" for metric, choice in choices.items())
            warnings.append(f"the metrics would divide differently: {splits}")
        return "; ".join(warnings)

    def _choices(self, found: Mapping[str, Divergences]) -> dict[Metric, Choice]:
        return {metric: self.choice(found, metric) for metric in METRICS}


def _shown(candidate: Candidate | None) -> JsonValue:
    return asdict(candidate) if candidate else None
