"""Splitting by a key of the data: the writer, the speaking role, the hospital (partitioning §8)."""

import re
from typing import Literal

import numpy as np
from pydantic import Field

from hansa.common.data.partition.table import Parts, Scheme, Table
from hansa.common.values.errors import InvalidInput


class Natural(Scheme):
    """One site for each value of a key; with fewer sites than values, randomly chosen ones."""

    kind: Literal["natural"] = "natural"
    by: str = Field(description="the key, such as hospital, writer or role")
    least: int = Field(1, ge=1, description="leave out values with fewer examples")

    def values(self, table: Table) -> np.ndarray:
        """Return the values that have enough examples, in order."""
        key = table.key(self.by, "data.partition.by")
        counts = np.bincount(key.codes, minlength=len(key.names))
        values: np.ndarray = np.flatnonzero(counts >= self.least)
        if not len(values):
            raise InvalidInput(
                f"data.partition.least: no {self.by} has {self.least} examples; the most is {counts.max()}"
            )
        return values

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Give every chosen value its rows."""
        key, chosen = table.key(self.by, "data.partition.by"), self.values(table)
        if sites > len(chosen):
            enough = f" with {self.least} examples or more" if self.least > 1 else ""
            raise InvalidInput(f"{sites} sites need more than the {len(chosen)} values of {self.by}{enough}")
        if sites < len(chosen):
            chosen = np.sort(np.random.default_rng(seed).choice(chosen, sites, replace=False))
        order = np.argsort(key.codes, kind="stable")
        starts = np.searchsorted(key.codes[order], np.arange(len(key.names) + 1))
        rows = [order[starts[value] : starts[value + 1]] for value in chosen]
        return Parts(rows, site_names([key.names[value] for value in chosen], self.by))


def site_names(values: list[str], key: str) -> tuple[str, ...]:
    """Return names of sites for a key's values: `cleveland`, or `writer-17` if a value is only a number."""
    names = []
    for value in values:
        word = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-.")[:48] or "site"
        # A site called `test` would overwrite test.npz, the test set.
        names.append(f"{key}-{word}" if word[0].isdigit() or word == "test" else word)
    if len(set(names)) < len(names):
        names = [f"{word[:56]}-{number}" for number, word in enumerate(names, start=1)]
    return tuple(names)
