"""Federated-centralized concordance: does a job learn what a reference learns? (Nasirigerdeh et al., 2020)

δ is the mean squared difference of the test losses of two jobs, version by version; below ε the jobs count as
concordant. DC is the distance of their last models, relative to the reference's: ‖w − w′‖/‖w′‖.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hansa.common.models.distance import distance as relative_distance
from hansa.common.models.frames import Layout, cut, views
from hansa.common.models.model import Manifest
from hansa.common.values.errors import InvalidInput
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import counted

Model = tuple[Manifest, np.ndarray]


@dataclass(frozen=True)
class Compared:
    """A job and, if it is needed, its last model."""

    label: str
    view: JobView
    model: Model | None

    @property
    def measured(self) -> list[VersionView]:
        """The versions that were evaluated on enough examples to count."""
        return [entry for entry in self.view.history if entry.covered]

    @property
    def left_out(self) -> int:
        """How many versions were evaluated on too few examples to be compared."""
        return sum(bool(entry.examples) and not entry.covered for entry in self.view.history)


@dataclass(frozen=True)
class Concordance:
    """How far a job is from the reference. A missing number could not be computed; `remarks` say why."""

    job: str
    discordance: float | None  # δ
    concordant: bool
    distance: float | None  # DC
    versions: int  # that δ covers
    remarks: list[str] = field(default_factory=list)


def discordance(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return δ, the mean squared difference of two series of test losses."""
    with np.errstate(over="ignore"):
        return float(np.mean(np.square(np.subtract(losses, reference))))


def distance(model: Model, reference: Model) -> float:
    """Return DC, the distance of two models' parameters relative to the norm of the reference's."""
    (mine, here), (theirs, there) = model, reference
    shapes = {info.name: info.shape for info in mine.spec.tensors}
    odd = next((info for info in theirs.spec.tensors if shapes.get(info.name) != info.shape), None)
    if odd is not None or len(mine.spec.tensors) != len(theirs.spec.tensors):
        raise InvalidInput(f"the models have different tensors{f': {odd.name} differs' if odd else ''}")
    tensors = views(Layout(theirs.spec), there)
    return relative_distance(Layout(mine.spec), cut(here), lambda name, a, b: tensors[name].reshape(-1)[a:b])


def concord(job: Compared, reference: Compared, epsilon: float) -> Concordance:
    """Compute how far a job is from the reference."""
    remarks: list[str] = []
    delta, versions = _delta(job, reference, remarks)
    apart: float | None = None
    if job.model is None or reference.model is None:
        without = job.label if job.model is None else reference.label
        remarks.append(f"{without} has no model, so there is no distance")
    else:
        try:
            apart = distance(job.model, reference.model)
        except InvalidInput as error:
            remarks.append(f"no distance: {error}")
        if job.view.version != reference.view.version:
            last = f"{job.view.version} and {reference.view.version}"
            remarks.append(f"the last models are of versions {last}, so their distance says little")
    return Concordance(job.label, delta, delta is not None and delta < epsilon, apart, versions, remarks)


def _delta(job: Compared, reference: Compared, remarks: list[str]) -> tuple[float | None, int]:
    """Return δ over the versions at which both were evaluated, and the number of these versions."""
    mine, theirs = ({entry.version: entry for entry in each.measured} for each in (job, reference))
    common = sorted(mine.keys() & theirs.keys())
    for each, measured in ((job, mine), (reference, theirs)):
        if not measured:
            why = "evaluated on too few test examples" if each.left_out else "no evaluator has evaluated it"
            remarks.append(f"{each.label} has no test losses: {why}")
        elif each.left_out:
            few = counted(each.left_out, "version")
            remarks.append(f"{few} of {each.label} left out: evaluated on too few of all test examples")
    if not common:
        if mine and theirs:
            remarks.append("there is no version at which both were evaluated; use the same evaluate.every")
        return None, 0
    if len(common) < max(len(mine), len(theirs)):
        remarks.append(
            f"of {len(mine)} and {len(theirs)} evaluated versions, {len(common)} are common to both"
        )
    if any(mine[version].examples != theirs[version].examples for version in common):
        remarks.append(
            "the losses are over different numbers of test examples: the test data are not the same"
        )
    pairs = [(mine[version].metrics.get("loss"), theirs[version].metrics.get("loss")) for version in common]
    finite = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(finite) < len(pairs):
        remarks.append(f"at {len(pairs) - len(finite)} versions a loss is not a finite number")
        return None, len(common)
    return discordance([a for a, _ in finite], [b for _, b in finite]), len(common)
