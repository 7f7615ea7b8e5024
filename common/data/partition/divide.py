"""Divide-and-Conquer's data: colour skew and class imbalance (partitioning §8)."""

from typing import Literal

import numpy as np
from pydantic import Field

from hansa.common.data.partition.sizes import enough
from hansa.common.data.partition.table import Key, Parts, Scheme, Table, deal
from hansa.common.values.errors import InvalidInput

TRIES = 1000
LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue, ITU-R BT.601


class ColorSkew(Scheme):
    """Two sites with half of the classes each; most images are gray at one site and coloured at the other."""

    kind: Literal["color-skew"] = "color-skew"
    first: float = Field(0.95, ge=0, le=1, description="share of gray images at the first site")
    second: float = Field(0.05, ge=0, le=1, description="share of gray images at the second site")
    gray: Literal["red", "luma"] = Field("red", description="copy the red channel, or weigh the three")

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Give each site its classes."""
        if sites != 2:
            raise InvalidInput(f"data.partition: color-skew is for 2 sites, not {sites}")
        classes = table.classes()
        if len(classes.names) < 2:
            raise InvalidInput("data.partition: color-skew needs two classes or more")
        at = np.isin(classes.codes, self._first_classes(classes, seed))
        return Parts([np.flatnonzero(at), np.flatnonzero(~at)])

    def paint(self, x: np.ndarray, labels: np.ndarray, seed: int, test: bool) -> np.ndarray:
        """Turn images gray: exactly floor(share · n) of each class; half of each class in the test set."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise InvalidInput(
                f"data.partition: color-skew needs colour images (n × 3 × h × w), not {list(x.shape)}"
            )
        classes = Table(labels).classes()
        first = set(self._first_classes(classes, seed).tolist())
        rng = np.random.default_rng([seed, 3 if test else 2])
        chosen = []
        for label in range(len(classes.names)):
            share = 0.5 if test else self.first if label in first else self.second
            rows = rng.permutation(np.flatnonzero(classes.codes == label))
            chosen.append(rows[: int(share * len(rows) + 1e-9)])
        painted = x.copy()
        rows = np.sort(np.concatenate(chosen))
        painted[rows] = to_gray(x[rows], self.gray)
        return painted

    @staticmethod
    def _first_classes(classes: Key, seed: int) -> np.ndarray:
        order = np.random.default_rng([seed, 1]).permutation(len(classes.names))
        return np.sort(order[: len(order) // 2])


def to_gray(x: np.ndarray, how: str) -> np.ndarray:
    """Return colour images whose three channels are equal."""
    if how == "red":
        one = x[:, :1]
    else:
        weighed = np.tensordot(x.astype(np.float64), LUMA, axes=([1], [0]))[:, None]
        one = (np.rint(weighed) if x.dtype.kind in "iu" else weighed).astype(x.dtype)
    return np.repeat(one, 3, axis=1)


class Imbalance(Scheme):
    """Each class is split by Dirichlet proportions across the sites that do not have their fair share yet."""

    kind: Literal["imbalance"] = "imbalance"
    alpha: float = Field(0.5, gt=0, description="concentration; smaller means more uneven")
    least: int = Field(10, ge=1, description="the fewest examples of a site")

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Draw until every site has enough."""
        enough(len(table), sites)
        if self.least * sites > len(table):
            raise InvalidInput(
                f"data.partition.least: {sites} sites with {self.least} examples each need"
                f" {self.least * sites}, but there are {len(table)}"
            )
        classes = table.classes()
        capacity = np.bincount(classes.codes, minlength=len(classes.names))
        rng = np.random.default_rng(seed)
        for _ in range(TRIES):
            matrix = self._draw(capacity, sites, rng)
            if matrix.sum(axis=1).min() >= self.least:
                return Parts(deal(matrix, classes.codes, rng))
        raise InvalidInput(
            f"data.partition.least: none of {TRIES} draws gave every site {self.least} examples;"
            f" choose fewer, or an alpha larger than {self.alpha:g}"
        )

    def _draw(self, capacity: np.ndarray, sites: int, rng: np.random.Generator) -> np.ndarray:
        matrix = np.zeros((sites, len(capacity)), dtype=np.int64)
        for label, held in enumerate(capacity.tolist()):
            drawn = rng.dirichlet(np.full(sites, self.alpha))
            drawn[matrix.sum(axis=1) >= capacity.sum() / sites] = 0
            if not drawn.any():  # all the weight was on sites that are full
                drawn[matrix.sum(axis=1).argmin()] = 1
            cuts = (np.cumsum(drawn / drawn.sum())[:-1] * held).astype(np.int64)
            matrix[:, label] = np.diff(np.concatenate([[0], cuts, [held]]))
        return matrix
