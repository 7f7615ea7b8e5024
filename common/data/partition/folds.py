"""Cross-validation by site: whole sites test, validate and train (partitioning §9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hansa.common.data.partition.sizes import sizes
from hansa.common.values.errors import InvalidInput

T = TypeVar("T")


@dataclass(frozen=True)
class Fold(Generic[T]):
    """The sites that test, validate and train."""

    test: tuple[T, ...]
    validation: tuple[T, ...]
    train: tuple[T, ...]


def folds(sites: Sequence[T], seed: int, count: int = 5, nested: bool = False) -> list[Fold[T]]:
    """Shuffle the sites and cut them into sets; set i tests in fold i and the next one validates.

    `nested` gives every pair of a test and a validation set. The sites of a set keep their order.
    """
    if count < 3:
        raise InvalidInput(f"{count} folds are too few: test, validation and training need one set each")
    if len(sites) < count:
        raise InvalidInput(f"{len(sites)} sites cannot make {count} folds; use fewer folds, or more sites")
    order = np.random.default_rng(seed).permutation(len(sites))
    ends = np.cumsum(sizes(np.ones(count), len(sites)))
    sets = [np.sort(part).tolist() for part in np.split(order, ends[:-1])]
    pairs = [(i, (i + step) % count) for i in range(count) for step in range(1, count if nested else 2)]
    return [
        Fold(
            test=tuple(sites[at] for at in sets[test]),
            validation=tuple(sites[at] for at in sets[validation]),
            train=tuple(
                sites[at]
                for at in sorted(at for i in range(count) if i not in (test, validation) for at in sets[i])
            ),
        )
        for test, validation in pairs
    ]
