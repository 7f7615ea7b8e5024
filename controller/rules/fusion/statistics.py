"""What a model reveals about the data it was trained on, as one vector of numbers (feddaf §2).

Normalisation layers reveal the most: their running statistics are those of the data. A model without any is
described by its weights; those of the last layer depend on the labels.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hansa.common.models.model import ModelSpec, Role

MOST = 200_000  # numbers of a vector; from longer ones this many are drawn
EPSILON = 1e-5  # torch's default
TINY = 1e-12  # added to the variance of weights, which is 0 for a unit whose weights are all equal
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
        """Return a tensor's section of the vector, in float64."""
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
        """Return the vector of a model; of a very long one a sample, drawn by seed and length alone."""
        with np.errstate(invalid="ignore", divide="ignore"):  # callers check for NaN and infinity
            sections = [source.numbers(read(source.tensor)) for source in self.sources]
        whole = np.concatenate(sections) if sections else np.zeros(0)
        if len(whole) <= MOST:
            return whole
        drawn = np.sort(np.random.default_rng([seed, len(whole)]).permutation(len(whole))[:MOST])
        return np.asarray(whole[drawn])


def plan(spec: ModelSpec, stats: Literal["auto", "norm", "weights"]) -> Plan:
    """Choose the tensors that describe a model; raise ValueError if the job insists on missing norms."""
    norms = _of_norms(spec)
    if stats == "norm" and not norms:
        raise ValueError("the model has no normalisation layer")
    if stats != "weights" and norms:
        return Plan("norm", norms)
    return Plan("weights", _of_weights(spec))


def _of_norms(spec: ModelSpec) -> tuple[Source, ...]:
    """Take every channel's running mean, log deviation, shift and scale, as far as a layer has them.

    Learners report which tensors belong to normalisation layers. In models that learners have not described
    (files from elsewhere, apps that use arrays) these are found by torch's names for running statistics.
    """
    epsilons = {info.name: info.norm for info in spec.tensors if info.norm is not None} or _named(spec)
    return tuple(
        Source(
            info.name, "deviations" if info.name.endswith("running_var") else "values", epsilons[info.name]
        )
        for info in spec.tensors
        if info.name in epsilons and info.is_float and info.elements
    )


def named_norms(names: Collection[str]) -> set[str]:
    """Return the prefixes of running statistics among names."""
    prefixes = {name.removesuffix("running_var") for name in names if name.endswith("running_var")}
    return {prefix for prefix in prefixes if f"{prefix}running_mean" in names}


def _named(spec: ModelSpec) -> dict[str, float]:
    prefixes = named_norms(spec.names)
    endings = ("running_mean", "running_var", "weight", "bias")
    return {prefix + ending: EPSILON for prefix in prefixes for ending in endings}


def _of_weights(spec: ModelSpec) -> tuple[Source, ...]:
    """Take the mean and log deviation of every output unit's weights, and other parameters as they are."""
    return tuple(
        Source(info.name, "units" if len(info.shape) >= 2 else "values")
        for info in spec.tensors
        if info.role is Role.PARAM and info.elements
    )
