"""A scheme's input and output: labels and keys in, each site's row numbers out."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hansa.common.values.bounds import Value
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import suggestion


@dataclass(frozen=True)
class Key:
    """A category of each row, such as the writer of an image: `codes` are positions in `names`."""

    codes: np.ndarray
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: np.ndarray) -> "Key":
        """Number the distinct values in order."""
        distinct, codes = np.unique(values, return_inverse=True)
        return cls(codes.reshape(-1), tuple(str(value) for value in distinct.tolist()))

    def take(self, rows: np.ndarray) -> "Key":
        """Return the categories of some rows, without names that no longer occur."""
        distinct, codes = np.unique(self.codes[rows], return_inverse=True)
        return Key(codes.reshape(-1), tuple(self.names[value] for value in distinct))


@dataclass(frozen=True)
class Table:
    """The rows to split: their labels and, by name, their keys."""

    labels: np.ndarray
    keys: Mapping[str, Key] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def classes(self) -> Key:
        """Return the classes that occur, in order; refuse labels that are not whole numbers."""
        if self.labels.ndim != 1:
            raise InvalidInput(
                f"labels have shape {list(self.labels.shape)}; splitting by class needs one for each row"
            )
        if self.labels.dtype.kind == "f" and np.isnan(self.labels).any():
            row = int(np.flatnonzero(np.isnan(self.labels))[0])
            raise InvalidInput(f"the label of row {row} is NaN; splitting by class needs whole numbers")
        if self.labels.dtype.kind not in "iu":
            raise InvalidInput(
                f"labels are {self.labels.dtype.name}, not integers, so there are no classes to split by;"
                " use kind: iid"
            )
        return Key.of(self.labels)

    def key(self, name: str, where: str) -> Key:
        """Return a key by its name."""
        if name not in self.keys:
            known = list(self.keys)
            hint = suggestion(name, known) if known else "; this data set has no keys"
            raise InvalidInput(f"{where}: there is no key {name!r}{hint}")
        return self.keys[name]


@dataclass(frozen=True)
class Parts:
    """Each site's row numbers, sorted, and the sites' names if the data name them."""

    rows: list[np.ndarray]
    names: tuple[str, ...] = ()


class Scheme(Value):
    """A way to split rows across sites: a pure function of the table, the number of sites and a seed."""

    @abstractmethod
    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Return each site's rows."""

    def paint(self, x: np.ndarray, labels: np.ndarray, seed: int, test: bool) -> np.ndarray:
        """Return the features as the sites get them; only schemes that skew features change them."""
        return x


def deal(matrix: np.ndarray, cells: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Turn counts (sites × cells) into row numbers: shuffle each cell's rows and deal them to the sites."""
    dealt: list[list[np.ndarray]] = [[] for _ in matrix]
    for cell in range(matrix.shape[1]):
        rows = rng.permutation(np.flatnonzero(cells == cell))
        ends = np.cumsum(matrix[:, cell])
        for mine, part in zip(dealt, np.split(rows, ends), strict=False):  # the last part is left over
            mine.append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]


def counts(rows: list[np.ndarray], cells: np.ndarray, width: int) -> np.ndarray:
    """Return the matrix sites × cells of a partition: the inverse of `deal`."""
    return np.array([np.bincount(cells[mine], minlength=width) for mine in rows], dtype=np.int64)
