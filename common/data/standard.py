"""Standardisation of features, from sums over columns that reveal no single row (partitioning §10)."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import TypeVar, cast

import numpy as np
from pydantic import ValidationError

from hansa.common.data.examples import Examples
from hansa.common.data.lazy import AnyExamples, LazyExamples, tables
from hansa.common.values.bounds import COLUMNS
from hansa.common.values.errors import InvalidData
from hansa.common.values.results import Profile
from hansa.common.values.settings.training import Standard

E = TypeVar("E", bound=AnyExamples)
CHUNK = 1 << 22  # numbers that are processed together


def _table(x: np.ndarray) -> np.ndarray:
    """Return features of any shape as rows × columns."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def leading(x: np.ndarray, columns: int | None) -> np.ndarray:
    """Return the columns that are standardised: the first ones, or all."""
    table = _table(x)
    width = table.shape[1]
    if columns is not None and columns > width:
        raise InvalidData(
            f"survey.columns: {columns} columns are to be standardised, but the data have {width}"
        )
    if (columns or width) > COLUMNS:
        raise InvalidData(
            f"survey.columns: the data have {width} columns, of which at most {COLUMNS} can be standardised;"
            " set survey.columns"
        )
    first: np.ndarray = table[:, :columns]
    return first


def profile(x: np.ndarray, columns: int | None) -> Profile:
    """Return number, mean and sum of squared deviations of each column."""
    table = leading(x, columns)
    if not len(table):
        return Profile(n=0, mean=(0.0,) * table.shape[1], m2=(0.0,) * table.shape[1])
    step = max(1, CHUNK // max(table.shape[1], 1))
    parts = [table[start : start + step] for start in range(0, len(table), step)]
    # Sums of differences from the first row are exactly 0 if a column is constant.
    first = table[0].astype(np.float64)
    mean = first + sum((part - first).sum(axis=0) for part in parts) / len(table)
    squares = np.zeros(table.shape[1])
    for part in parts:
        squares += ((part - mean) ** 2).sum(axis=0)
    return Profile(n=len(table), mean=tuple(mean.tolist()), m2=tuple(squares.tolist()))


def profile_of(examples: AnyExamples, columns: int | None) -> Profile:
    """Return the profile of examples; those of a Dataset are read once, a part at a time."""
    if isinstance(examples, Examples):
        return profile(examples.x, columns)
    parts = (profile(table, columns) for table in tables(examples, CHUNK))
    return reduce(merged, parts, Profile(n=0))


def merged(one: Profile, other: Profile) -> Profile:
    """Return the profile of both sets of rows, from their profiles alone."""
    if not one.n or not other.n:
        return one if one.n else other
    n = one.n + other.n
    apart = np.array(other.mean) - np.array(one.mean)
    mean = np.array(one.mean) + apart * (other.n / n)
    squares = np.array(one.m2) + np.array(other.m2) + apart**2 * (one.n * other.n / n)
    return Profile(n=n, mean=tuple(mean.tolist()), m2=tuple(squares.tolist()))


def pooled(profiles: Iterable[Profile]) -> Standard:
    """Return the standard of all rows of all sites; the caller decides their order."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return standard_of(reduce(merged, profiles))
    except ValidationError:  # every site's numbers are finite, but their sums are not
        raise InvalidData("survey: the sites' means or deviations are too large to be pooled") from None


def standard_of(profile: Profile) -> Standard:
    """Return mean and deviation (of the population, not of a sample); a constant column has deviation 1."""
    deviation = np.sqrt(np.array(profile.m2) / max(profile.n, 1))
    # Rounding leaves a little deviation of a constant.
    deviation[deviation <= 8 * np.finfo(float).eps * np.abs(profile.mean)] = 1
    return Standard(kind="global", mean=profile.mean, deviation=tuple(deviation.tolist()))


def standardised(examples: E, standard: Standard | None, own: AnyExamples | None = None) -> E:
    """Return examples with standardised features; a local standard is that of the site's `own` rows."""
    if standard is None:
        return examples
    standard = settled(standard, examples if own is None else own)
    if isinstance(examples, LazyExamples):
        return cast(E, replace(examples, standard=standard))  # each example, when it is read
    width = len(standard.mean)
    rows, x = leading(examples.x, width), _table(examples.x).astype(np.float32)
    mean, deviation = np.array(standard.mean), np.array(standard.deviation)
    step = max(1, CHUNK // max(width, 1))
    for start in range(0, len(x), step):  # in float64, a part at a time
        x[start : start + step, :width] = (rows[start : start + step] - mean) / deviation
    return cast(E, Examples(x.reshape(examples.x.shape), examples.y))


def settled(standard: Standard, own: AnyExamples) -> Standard:
    """Return the moments to standardise by: if they are local, those of the site's own rows."""
    return standard_of(profile_of(own, standard.columns)) if standard.kind == "local" else standard
