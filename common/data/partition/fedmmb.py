"""Equal random shares, and equal shares of L classes (FedMMB's IID and Non-IID-L; partitioning §3)."""

from typing import Literal

import numpy as np
from pydantic import Field

from hansa.common.data.partition.metis import assign
from hansa.common.data.partition.sizes import enough, sizes
from hansa.common.data.partition.table import Parts, Scheme, Table, deal
from hansa.common.values.errors import InvalidInput


class Iid(Scheme):
    """Every site gets the same share of everything, at random."""

    kind: Literal["iid"] = "iid"

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Shuffle and cut."""
        enough(len(table), sites)
        order = np.random.default_rng(seed).permutation(len(table))
        ends = np.cumsum(sizes(np.ones(sites), len(table)))
        return Parts([np.sort(rows) for rows in np.split(order, ends[:-1])])


class NonIidL(Scheme):
    """Every site gets equal parts of `labels` classes and nothing of the others (FedMMB, Non-IID-L)."""

    kind: Literal["non-iid-l"] = "non-iid-l"
    labels: int = Field(ge=1, description="classes at each site")
    allow_uneven: bool = Field(
        False, description="allow sites × labels that is not a multiple of the classes"
    )

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Split rows: slot s = 0 … K·L-1 belongs to site s div L and has label σ(s mod C).

        The slots of a label share its rows evenly.
        """
        enough(len(table), sites)
        classes = table.classes()
        width = len(classes.names)
        capacity = np.bincount(classes.codes, minlength=width)
        if self.labels > width:
            raise InvalidInput(
                f"data.partition.labels: {self.labels} labels for each site, but there are only {width}"
            )
        rng = np.random.default_rng(seed)
        if sites * self.labels % width:
            if not self.allow_uneven:
                raise InvalidInput(
                    f"data.partition: {sites} sites × {self.labels} labels is not a multiple of {width}"
                    " classes; choose sites and labels so that it is, or set allow_uneven: true"
                )
            rows = sizes(np.ones(sites), len(table))
            return Parts(deal(assign(rows, np.full(sites, self.labels), capacity, rng), classes.codes, rng))
        order = rng.permutation(width)
        matrix = np.zeros((sites, width), dtype=np.int64)
        holders = np.zeros((sites, width), dtype=bool)
        for slot in range(sites * self.labels):
            holders[slot // self.labels, order[slot % width]] = True
        for label in range(width):
            among = np.flatnonzero(holders[:, label])
            if capacity[label] < len(among):
                raise InvalidInput(
                    f"data.partition.labels: class {classes.names[label]} has {capacity[label]} examples,"
                    f" too few for the {len(among)} sites that share it"
                )
            matrix[among, label] = sizes(np.ones(len(among)), int(capacity[label]))
        return Parts(deal(matrix, classes.codes, rng))
