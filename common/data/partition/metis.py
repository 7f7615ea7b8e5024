"""Metis's data environments: sizes × classes per site (Stripelis and Ambite; partitioning §2)."""

import re
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from hansa.common.data.partition.sizes import enough, parse_law, shares, sizes
from hansa.common.data.partition.table import Parts, Scheme, Table, deal
from hansa.common.data.partition.transport import balanced, project, rounded, spread
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import counted

TRIES = 50
MANY = 12  # with more classes, not all groups of them are examined
HEAD = re.compile(
    r"\d{1,6}(?:x\d{1,6}(,\d{1,6}x\d{1,6})*)?"
)  # Python does not parse numbers of thousands of digits


class Metis(Scheme):
    """Sizes by a law (uniform, skewed, powerlaw(a)) and a number of classes per site, largest first."""

    kind: Literal["metis"] = "metis"
    sizes: str = Field("uniform", description="uniform, skewed or powerlaw(a)")
    classes: str = Field(
        "iid", description="iid, a number of classes, or a list like 8x1,4x1,3x8: classes x sites"
    )

    @field_validator("sizes")
    @classmethod
    def _sizes_are_a_law(cls, law: str) -> str:
        parse_law(law)
        return law

    @field_validator("classes", mode="before")
    @classmethod
    def _classes_are_counts(cls, given: object) -> str:
        text = str(given).replace(" ", "").lower()
        if text != "iid" and not HEAD.fullmatch(text):
            raise ValueError(
                f"{given!r:.100}: write iid, a number of classes per site, or a list such as 8x1,4x1,3x8"
            )
        return text

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Return each site's rows, the largest site first."""
        enough(len(table), sites)
        classes = table.classes()
        capacity = np.bincount(classes.codes, minlength=len(classes.names))
        rows = sizes(shares(self.sizes, sites), len(table))
        rng = np.random.default_rng(seed)
        if self.classes == "iid":
            matrix = proportional(rows, capacity)
        else:
            matrix = assign(rows, class_counts(self.classes, sites), capacity, rng)
        return Parts(deal(matrix, classes.codes, rng))


def class_counts(words: str, sites: int) -> np.ndarray:
    """Parse the number of classes of each site: `3`, or `8x1,4x1,3x8` in descending order of size."""
    if words.isdecimal():
        return np.full(sites, int(words))
    pairs = [tuple(map(int, pair.split("x"))) for pair in words.split(",")]
    total = sum(count for _, count in pairs)
    if total != sites:
        raise InvalidInput(f"classes {words}: the list is for {total} sites, but there are {sites}")
    return np.repeat([classes for classes, _ in pairs], [count for _, count in pairs])


def proportional(rows: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Give every site every class in proportion to its size (IID)."""
    exact = np.outer(rows, capacity) / max(int(rows.sum()), 1)
    return rounded(project(exact, rows, capacity), rows, capacity)


def assign(
    rows: np.ndarray, wanted: np.ndarray, capacity: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Give site t exactly wanted[t] classes and rows[t] examples, and use up every class.

    Classes: those with the most examples left, with jitter, because without it the sites fall apart into
    groups that share no class and do not add up. That can miss a partition if classes are very unequal; then
    a search over all choices of classes decides. Examples of each class: as evenly as the sums allow.
    """
    _possible(rows, wanted, capacity)
    order = np.argsort(-rows, kind="stable")
    for _ in range(TRIES):
        matrix = _evenly(_supports(rows, wanted, capacity, order, rng), rows, wanted, capacity)
        if matrix is not None:
            return matrix
    try:
        support = spread(rows, wanted, capacity, rng)
    except TimeoutError:
        fate = f"was found in {TRIES} tries and a long search, which could not decide whether there is one"
        advice = "give the sites more classes, or try another seed"
    else:
        matrix = None if support is None else _evenly(support, rows, wanted, capacity)
        if matrix is not None:
            return matrix
        fate, advice = "exists, whichever classes a site takes", "give the sites more classes"
    raise InvalidInput(
        f"no partition with these sizes and class counts {fate}; the largest is site-{order[0] + 1}"
        f" ({rows[order[0]]} examples of {counted(wanted[order[0]], 'class', 'classes')}): {advice}"
    )


def _evenly(
    support: np.ndarray, rows: np.ndarray, wanted: np.ndarray, capacity: np.ndarray
) -> np.ndarray | None:
    """Split each site's size over its classes as evenly as the sums allow; None: these classes do not fit."""
    goal = np.zeros(support.shape, dtype=np.int64)
    for site, chosen in enumerate(support):
        goal[site, chosen] = sizes(np.ones(int(wanted[site])), int(rows[site]))
    return balanced(goal, support, rows, capacity)


def _supports(
    rows: np.ndarray, wanted: np.ndarray, capacity: np.ndarray, order: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    left = capacity.astype(np.float64)
    support = np.zeros((len(rows), len(capacity)), dtype=bool)
    for site in order:
        appeal = left * rng.uniform(0.5, 1.5, len(capacity))
        chosen = np.argsort(-appeal, kind="stable")[: wanted[site]]
        support[site, chosen] = True
        left[chosen] -= _filled(left[chosen], float(rows[site]))
    return support


def _filled(room: np.ndarray, amount: float) -> np.ndarray:
    """Distribute an amount evenly over places of limited room."""
    taken = np.zeros(len(room))
    for rank, place in enumerate(np.argsort(room, kind="stable")):
        taken[place] = min(float(room[place]), (amount - float(taken.sum())) / (len(room) - rank))
    return taken


def _possible(rows: np.ndarray, wanted: np.ndarray, capacity: np.ndarray) -> None:
    """Refuse what is clearly impossible, naming the site and the reason."""
    no = "no partition with these sizes and class counts"
    empty = np.flatnonzero(capacity < 1)
    if len(empty):
        raise InvalidInput(f"{no}: class {empty[0]} has no examples")
    fullest = np.concatenate([[0], np.cumsum(np.sort(capacity)[::-1])])
    for site, (size, count) in enumerate(zip(rows.tolist(), wanted.tolist(), strict=True), start=1):
        if not 1 <= count <= len(capacity):
            raise InvalidInput(
                f"{no}: site-{site} should have {count} classes, but there are {len(capacity)}"
            )
        if size < count:
            raise InvalidInput(f"{no}: site-{site} has {size} examples, too few for {count} classes")
        if size > fullest[count]:
            raise InvalidInput(
                f"{no}: site-{site} needs {size} examples, but {count}"
                f" {'classes hold' if count > 1 else 'class holds'} {fullest[count]} at most;"
                " give the largest sites more classes, as in 8x1,4x1,3x8"
            )
    if wanted.sum() < len(capacity):
        raise InvalidInput(
            f"{no}: {len(rows)} sites with {int(wanted.sum())} classes in all leave some of the"
            f" {len(capacity)} classes without a site"
        )
    if int(np.minimum(capacity, len(rows)).sum()) < int(wanted.sum()):
        raise InvalidInput(
            f"{no}: the smallest class has {capacity.min()} examples, too few for so many sites"
        )
    if len(rows) + len(capacity) - int(wanted.sum()) > 1 and not _separable(rows, capacity):
        first = int(rows.argmax())
        raise InvalidInput(
            f"{no}: {len(rows)} sites with {int(wanted.sum())} classes in all fall apart into groups that"
            " share no class, and no group of sites has exactly as many examples as some classes hold;"
            f" site-{first + 1} ({rows[first]} examples of"
            f" {counted(int(wanted[first]), 'class', 'classes')}) and others need more"
        )


def _separable(rows: np.ndarray, capacity: np.ndarray) -> bool:
    """Whether some of the sites have exactly as many examples as some, but not all, of the classes.

    n sites and C classes joined by fewer than n + C - 1 cells are not connected, so each group has to add up
    by itself.
    """
    if len(capacity) > MANY:
        return True  # too many groups to examine; the search decides
    reachable = 1  # bit s is set if some sites have s examples in all
    for size in rows.tolist():
        reachable |= reachable << size
    totals = np.zeros(1, dtype=np.int64)
    for room in capacity.tolist():
        totals = np.concatenate([totals, totals + room])
    return any(reachable >> total & 1 for total in set(totals.tolist()) - {0, int(rows.sum())})


def placement(rows: np.ndarray) -> list[str]:
    """Return which machine each site gets, `fast` or `slow`, alternating by descending size."""
    order = np.argsort(-rows, kind="stable")
    machines = [""] * len(rows)
    for rank, site in enumerate(order):
        machines[site] = "slow" if rank % 2 else "fast"
    return machines
