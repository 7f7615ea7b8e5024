"""A data set in memory: examples, the keys of each, and which of them are for testing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hansa.common.data.examples import Examples
from hansa.common.data.partition.sizes import sizes
from hansa.common.data.partition.table import Key, Table
from hansa.common.values.errors import InvalidData, InvalidInput

TEST_SHARE = 0.2  # for a set without its own test part


@dataclass(frozen=True)
class DataSet:
    """All rows of a set; the last `tested` of them are its own test part."""

    examples: Examples
    tested: int = 0
    keys: Mapping[str, Key] = field(default_factory=dict)
    columns: tuple[str, ...] = ()  # names of the features, where they have names
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, 2 …
    ordered: bool = False  # rows of one key are in the order of time

    def __len__(self) -> int:
        return len(self.examples)

    def refuse_empty_classes(self) -> None:
        """Refuse labels with an empty class: one that is named, or a number between two others."""
        y = self.examples.y
        if y.ndim != 1 or y.dtype.kind not in "iu" or not len(y):
            return  # there are no classes; a scheme that needs them says so
        labels = np.unique(y)
        bounds = (0, len(self.classes) - 1) if self.classes else (int(labels[0]), int(labels[-1]))
        known = np.concatenate([[bounds[0] - 1], labels, [bounds[1] + 1]])
        gaps = np.flatnonzero(np.diff(known) > 1)
        if len(gaps):
            empty = int(known[gaps[0]]) + 1
            name = f"{empty} ({self.classes[empty]})" if self.classes else str(empty)
            raise InvalidData(
                f"class {name} is empty: labels run from {bounds[0]} to {bounds[1]}, but none is {empty};"
                " number the classes without gaps"
            )

    def table(self, rows: np.ndarray) -> Table:
        """Return what a scheme may know about some rows."""
        return Table(self.examples.y[rows], {name: key.take(rows) for name, key in self.keys.items()})

    def held_out(self, seed: int, test: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows for training and for testing.

        `test` is the share of all rows for testing; without it, the set's own test part is used, or a fifth.
        """
        if test is None and self.tested:
            cut = len(self) - self.tested
            return np.arange(cut), np.arange(cut, len(self))
        order = np.random.default_rng([seed, 1]).permutation(len(self))
        cut = round((TEST_SHARE if test is None else test) * len(self))
        return np.sort(order[cut:]), np.sort(order[:cut])

    def sampled(self, rows: np.ndarray, count: int, seed: int) -> np.ndarray:
        """Return `count` of some rows at random: of each class in proportion, if there are classes."""
        if count > len(rows):
            raise InvalidInput(
                f"data.examples: {count} are wanted, but the set has only {len(rows)} for training"
            )
        rng = np.random.default_rng([seed, 2])
        y = self.examples.y[rows]
        codes = Key.of(y).codes if y.ndim == 1 and y.dtype.kind in "iu" else np.zeros(len(rows), np.int64)
        available = np.bincount(codes)
        order = rng.permutation(len(rows))
        mixed = codes[order]
        taken = [order[mixed == code][:some] for code, some in enumerate(sizes(available, count, least=0))]
        return np.sort(rows[np.concatenate(taken)])
