"""The validation part of a site's data: deterministic, stratified, the same for learner and evaluator."""

import zlib

import numpy as np

from hansa.common.data.examples import Examples
from hansa.common.data.standard import standardised
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Task
from hansa.common.values.training import ValidationSpec


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


def parts(examples: Examples, task: Task) -> tuple[Examples, Examples]:
    """Return a site's training and validation data for a task, both standardised as the job asks."""
    rows = split(examples.y, task.validation, task.seed, task.site)
    train, validation = (examples.take(chosen) for chosen in rows)
    return standardised(train, task.standard), standardised(validation, task.standard, train.x)


def _count(rows: int, fraction: float) -> int:
    if rows < 2:
        return 0
    return min(max(round(fraction * rows), 1), rows - 1)
