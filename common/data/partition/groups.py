"""Groups of sites with their own classes: a few sites may have classes that no other site has (feddaf §4)."""

import re
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from hansa.common.data.partition.sizes import enough, sizes
from hansa.common.data.partition.table import Parts, Scheme, Table, deal
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import listed

WHERE = "data.partition.groups"


def parse_groups(text: str) -> list[tuple[int, list[int]]]:
    """Parse `16 of 0-4, 4 of 5-9`: the number of sites of each group, and its classes."""
    groups = []
    for part in text.split(","):
        match = re.fullmatch(
            r"\s*(\d{1,6})\s+of\s+(\d{1,6}(?:-\d{1,6})?(?:\s+\d{1,6}(?:-\d{1,6})?)*)\s*", part
        )
        if match is None or not int(match[1]):
            raise ValueError(
                f"{part.strip()!r} does not name sites and classes; write for example 16 of 0-4, 4 of 5-9"
            )
        classes: set[int] = set()
        for span in match[2].split():
            first, _, last = span.partition("-")
            if int(last or first) < int(first):
                raise ValueError(f"{span}: the first class is larger than the last")
            classes |= set(range(int(first), int(last or first) + 1))
        groups.append((int(match[1]), sorted(classes)))
    return groups


def _checked(text: str) -> str:
    parse_groups(text)
    return text


class Groups(Scheme):
    """Groups of sites, each with its own classes in equal parts, such as `16 of 0-4, 4 of 5-9`."""

    kind: Literal["groups"] = "groups"
    groups: Annotated[str, AfterValidator(_checked)] = Field(
        description="the number of sites and the classes of each group: 16 of 0-4, 4 of 5-9"
    )
    least: int | None = Field(
        None, ge=1, description="examples of the smallest site (default: those of the largest)"
    )
    most: int | None = Field(
        None, ge=1, description="examples of the largest site; sizes are drawn, the rest is not used"
    )

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Split every class across the sites that hold it, or draw the number of examples of every site."""
        enough(len(table), sites)
        classes = table.classes()
        holders = self._holders(sites, [int(name) for name in classes.names])
        capacity = np.bincount(classes.codes, minlength=len(classes.names))
        rng = np.random.default_rng(seed)
        matrix = (
            self._shared(holders, capacity) if self.most is None else self._drawn(holders, self.most, rng)
        )
        short = np.flatnonzero(matrix.sum(axis=0) > capacity)
        if len(short):
            name, wanted = classes.names[short[0]], int(matrix[:, short[0]].sum())
            raise InvalidInput(
                f"{WHERE}: sites need {wanted} examples of class {name}, which has {capacity[short[0]]}"
            )
        empty = np.flatnonzero(matrix.sum(axis=1) == 0)
        if len(empty):
            raise InvalidInput(
                f"{WHERE}: site {empty[0] + 1} would have no examples; there are too few of its classes"
            )
        return Parts(deal(matrix, classes.codes, rng))

    def _holders(self, sites: int, labels: list[int]) -> np.ndarray:
        """Return which site holds which class, sites in the order of their groups."""
        groups = parse_groups(self.groups)
        total = sum(count for count, _ in groups)
        if total != sites:
            raise InvalidInput(f"{WHERE}: they have {total} sites, but data.sites is {sites}")
        named = {label for _, held in groups for label in held}
        if unknown := sorted(named - set(labels)):
            raise InvalidInput(
                f"{WHERE}: there is no class {unknown[0]}; classes are {listed(map(str, labels), 20)}"
            )
        if self.most is None and (left := sorted(set(labels) - named)):
            raise InvalidInput(f"{WHERE}: no group has class {left[0]}")
        return np.array([[label in held for label in labels] for count, held in groups for _ in range(count)])

    @staticmethod
    def _shared(holders: np.ndarray, capacity: np.ndarray) -> np.ndarray:
        """Split all examples of a class evenly across the sites that hold it."""
        matrix = np.zeros(holders.shape, dtype=np.int64)
        for label, among in enumerate(holders.T):
            matrix[among, label] = sizes(np.ones(int(among.sum())), int(capacity[label]), least=0)
        return matrix

    def _drawn(self, holders: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
        """Draw every site's size, and take equal parts of its classes."""
        least = most if self.least is None else self.least
        if least > most:
            raise InvalidInput(f"data.partition.least: {least} is more than most ({most})")
        matrix = np.zeros(holders.shape, dtype=np.int64)
        for site, size in enumerate(rng.integers(least, most + 1, len(holders)).tolist()):
            held = rng.permutation(np.flatnonzero(holders[site]))  # the first ones may get one more
            matrix[site, held] = sizes(np.ones(len(held)), size, least=0)
        return matrix
