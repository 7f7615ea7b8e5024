"""What a model tells of the data that it was trained on, as one vector of numbers (feddaf §2).

Normalisation layers tell the most: their running statistics are those of the data. A model without any is
described by its weights; the last layer's follow from the labels.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hansa.common.models.model import ModelSpec, Role

MOST = 200_000  # numbers of a vector; of more, so many are drawn
EPSILON = 1e-5  # torch's, where nobody says
TINY = 1e-12  # added to the variance of weights: a unit whose weights are all alike has one, too
FALLBACK = "the model has no normalisation layer; its weights are described instead (weigh.stats: weights)"
Kind = Literal["norm", "weights"]
Read = Callable[[str], np.ndarray]  # a tensor by its name


@dataclass(frozen=True)
class Source:
    """A tensor, and what is taken from it."""

    tensor: str
    take: Literal["values", "deviations", "units"]
    eps: float = 0.0

    def numbers(self, tensor: np.ndarray) -> np.ndarray:
        """Return a tensor's part of the vector, float64."""
        values = np.asarray(tensor, dtype=np.float64)
        if self.take == "values":
            return values.ravel()
        if self.take == "deviations":
            return np.asarray(0.5 * np.log(values + self.eps).ravel())
        units = values.reshape(len(values), -1)
        return np.concatenate([units.mean(axis=1), 0.5 * np.log(units.var(axis=1) + TINY)])


@dataclass(frozen=True)
class Plan:
    """Which tensors a vector is made of, in order."""

    kind: Kind
    sources: tuple[Source, ...]

    def vector(self, read: Read, seed: int = 0) -> np.ndarray:
        """Return the vector of a model; of a very long one a part, which follows from seed and length alone."""
        with np.errstate(
            invalid="ignore", divide="ignore"
        ):  # whoever uses it looks for numbers that are none
            parts = [source.numbers(read(source.tensor)) for source in self.sources]
        whole = np.concatenate(parts) if parts else np.zeros(0)
        if len(whole) <= MOST:
            return whole
        return np.asarray(
            whole[np.sort(np.random.default_rng([seed, len(whole)]).permutation(len(whole))[:MOST])]
        )


def plan(spec: ModelSpec, stats: Literal["auto", "norm", "weights"]) -> Plan:
    """Say what describes models of a kind; raise ValueError if the job insists on what there is not."""
    normal = _of_norms(spec)
    if stats == "norm" and not normal:
        raise ValueError("the model has no normalisation layer")
    if stats != "weights" and normal:
        return Plan("norm", normal)
    return Plan("weights", _of_weights(spec))


def _of_norms(spec: ModelSpec) -> tuple[Source, ...]:
    """Take every channel's running mean, log deviation, shift and scale, as far as a layer has them.

    Learners say which tensors belong to normalisation layers. Models that come without a learner's word
    (files of others, apps that bring arrays) are known by the names that torch gives to running statistics.
    """
    told = {info.name: info.norm for info in spec.tensors if info.norm is not None} or _named(spec)
    return tuple(
        Source(info.name, "deviations" if info.name.endswith("running_var") else "values", told[info.name])
        for info in spec.tensors
        if info.name in told and info.is_float and info.elements
    )


def named_norms(names: Collection[str]) -> set[str]:
    """Return what comes before the names of running statistics, where there are any."""
    parts = {name.removesuffix("running_var") for name in names if name.endswith("running_var")}
    return {part for part in parts if f"{part}running_mean" in names}


def _named(spec: ModelSpec) -> dict[str, float]:
    norms = named_norms(spec.names)
    return {
        part + name: EPSILON for part in norms for name in ("running_mean", "running_var", "weight", "bias")
    }


def _of_weights(spec: ModelSpec) -> tuple[Source, ...]:
    """Take the mean and log deviation of every output unit's weights, and other parameters as they are."""
    return tuple(
        Source(info.name, "units" if len(info.shape) >= 2 else "values")
        for info in spec.tensors
        if info.role is Role.PARAM and info.elements
    )
