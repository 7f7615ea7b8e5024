"""Helpers for tests of partitions."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from hansa.common.data.partition import Key, Table
from hansa.common.data.partition.table import counts

TEN = np.repeat(np.arange(10), 5000)  # the labels of CIFAR-10
SEEDS = st.integers(0, 1 << 40)
QUICK = settings(max_examples=60, deadline=None)


def matrix_of(rows: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    classes = Key.of(labels)
    return counts(rows, classes.codes, len(classes.names))


def is_partition(rows: list[np.ndarray], total: int) -> bool:
    return sorted(np.concatenate(rows).tolist()) == list(range(total))


def small_table() -> Table:
    rng = np.random.default_rng(5)
    labels = rng.permutation(np.repeat(np.arange(5) * 2, [150, 160, 170, 180, 190]))
    return Table(labels, {"shape": Key.of(rng.integers(0, 3, len(labels)))})
