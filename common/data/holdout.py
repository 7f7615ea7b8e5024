"""The validation part of a site's data: deterministic, stratified, the same for learner and evaluator."""

import zlib
from typing import cast

import numpy as np

from hansa.common.data.examples import Examples
from hansa.common.data.lazy import AnyExamples
from hansa.common.data.standard import E, settled, standardised
from hansa.common.values.errors import InvalidData
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task


def split(
    labels: np.ndarray, spec: ValidationSpec, seed: int, site: SiteName, purpose: str = "validation"
) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted row numbers for training and for validation (or testing), which together are all rows.

    Stratified (metis-dvw §1.1): of each class round(fraction·n) rows, at least one if there are two or more,
    none of a class with a single row.
    """
    rows = len(labels)
    rng = np.random.default_rng([seed, zlib.crc32(site.encode()), zlib.crc32(purpose.encode())])
    if not spec.fraction:
        return np.arange(rows), np.arange(0)
    groups = [np.arange(rows)]
    if spec.stratified and labels.ndim == 1 and labels.dtype.kind in "iu":
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    chosen = [rng.permutation(group)[: _count(len(group), spec.fraction)] for group in groups]
    validation = np.sort(np.concatenate(chosen)) if chosen else np.arange(0)
    mask = np.ones(rows, dtype=bool)
    mask[validation] = False
    return np.flatnonzero(mask), validation


def rows_of(examples: AnyExamples, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a site's data for training and for validation in a task."""
    return split(_labels(examples, task.validation), task.validation, task.seed, task.site)


def parts(examples: E, task: Task) -> tuple[E, E]:
    """Return a site's training and validation data for a task, both standardised as the job asks."""
    rows, others = rows_of(examples, task)
    train, validation = cast(E, examples.take(rows)), cast(E, examples.take(others))
    standard = task.standard and settled(task.standard, train)
    return standardised(train, standard), standardised(validation, standard)


def _labels(examples: AnyExamples, spec: ValidationSpec) -> np.ndarray:
    """Return the labels to stratify by; without any, all rows are of one kind."""
    if isinstance(examples, Examples):
        return examples.y
    labels = examples.labels
    if labels is not None:
        return labels
    if examples.classified and spec.stratified and spec.fraction:
        raise InvalidData(
            f"{examples.origin}: a stratified hold-out needs the labels of all examples, and the Dataset has"
            " no attribute `targets` with them (an array or a list, as those of torchvision have); add it, or"
            " set validation: {stratified: false} in the job"
        )
    return np.zeros(len(examples), dtype=np.float32)


def _count(rows: int, fraction: float) -> int:
    if rows < 2:
        return 0
    return min(max(round(fraction * rows), 1), rows - 1)
