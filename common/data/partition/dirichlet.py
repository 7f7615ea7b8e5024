"""RADFed's heterogeneity: Dirichlet sizes, classes and features, where data allow it (partitioning §4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from hansa.common.data.partition.moves import Moves, wander, wander_marginals
from hansa.common.data.partition.sizes import enough, sizes
from hansa.common.data.partition.table import Key, Parts, Scheme, Table, deal
from hansa.common.data.partition.transport import project, rounded
from hansa.common.values.errors import InvalidInput

DRAWS = 100


class Dirichlet(Scheme):
    """Sizes, classes and categories of features are drawn from Dirichlet distributions (RADFed)."""

    kind: Literal["dirichlet"] = "dirichlet"
    sizes: float = Field(1.0, gt=0, description="μ: smaller means more unequal sizes")
    classes: float = Field(1.0, gt=0, description="λ: smaller means fewer classes at each site")
    features: dict[str, float] = Field(
        {}, description="θ of each key whose categories are skewed, such as {soil: 1}"
    )
    randomise: bool = Field(True, description="walk away from the optimum with random moves (Algorithm 3)")
    moves: Moves = Field(Moves(), description="of the walk: burn_in, search, step, stop_band")

    @field_validator("features", mode="before")
    @classmethod
    def _features_may_be_abbreviated(cls, given: object) -> object:
        """Accept `soil=1,wilderness=0.5` as well as a mapping."""
        if not isinstance(given, str):
            return given
        pairs = [pair.partition("=") for pair in given.split(",") if pair.strip()]
        if not all(value for _, _, value in pairs):
            raise ValueError(f"{given!r}: write KEY=THETA, such as soil=1,wilderness=0.5")
        return {name.strip(): value.strip() for name, _, value in pairs}

    @field_validator("features")
    @classmethod
    def _thetas_are_positive(cls, given: dict[str, float]) -> dict[str, float]:
        wrong = [name for name, theta in given.items() if not theta > 0]
        if wrong:
            raise ValueError(f"{wrong[0]}: θ must be above 0")
        return given

    def part(self, table: Table, sites: int, seed: int) -> Parts:
        """Draw sizes, classes and features in this order; then solve, walk, round and deal."""
        enough(len(table), sites)
        keys = [table.classes(), *(table.key(name, "data.partition.features") for name in self.features)]
        rng = np.random.default_rng(seed)
        rows = draw_sizes(self.sizes, sites, len(table), rng)
        wanted = [
            rng.dirichlet(np.full(len(key.names), concentration), size=sites) * rows[:, None]
            for key, concentration in zip(keys, [self.classes, *self.features.values()], strict=True)
        ]
        grid = cross(keys)
        columns = np.bincount(grid.codes, minlength=len(grid.marginals))
        if self.features:
            goal = np.concatenate(wanted, axis=1)
            exact = nearest_marginals(goal, grid.marginals, rows, columns)
            if self.randomise:
                exact = wander_marginals(exact, goal, grid.marginals, self.moves, rng)
        else:
            exact = nearest(wanted[0], rows, columns)
            if self.randomise:
                exact = wander(exact, wanted[0], self.moves, rng)
        return Parts(deal(rounded(project(exact, rows, columns), rows, columns), grid.codes, rng))


@dataclass(frozen=True)
class Grid:
    """The combinations of classes and categories that occur: that of each row, and the categories of each."""

    codes: np.ndarray
    marginals: np.ndarray  # combinations × (all categories of all keys), zeros and ones


def cross(keys: Sequence[Key]) -> Grid:
    """Cross the classes with the categories of features."""
    combinations, codes = np.unique(
        np.stack([key.codes for key in keys], axis=1), axis=0, return_inverse=True
    )
    blocks = [np.eye(len(key.names))[combinations[:, i]] for i, key in enumerate(keys)]
    return Grid(codes.reshape(-1), np.concatenate(blocks, axis=1))


def draw_sizes(concentration: float, sites: int, total: int, rng: np.random.Generator) -> np.ndarray:
    """Draw sizes; repeat if a site would get less than half an example."""
    for _ in range(DRAWS):
        drawn = rng.dirichlet(np.full(sites, concentration))
        if (drawn * total >= 0.5).all():
            return sizes(drawn, total)
    raise InvalidInput(
        f"data.partition.sizes: with {concentration:g}, each of {DRAWS} draws left one of {sites} sites"
        " without examples; choose a larger number or fewer sites"
    )


def nearest(goal: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Solve problem (1): the matrix with these sums that is nearest to the goal. There is exactly one."""
    return _solve(goal, None, rows, columns)


def nearest_marginals(
    goal: np.ndarray, marginals: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Solve problem (2): one of the matrices with these sums whose marginals are nearest to the goal."""
    return _solve(goal, marginals, rows, columns)


def _solve(
    goal: np.ndarray, marginals: np.ndarray | None, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    import cvxpy

    scale = max(float(rows.sum()) / len(rows), 1.0)  # the solver works best with numbers around one
    counts = cvxpy.Variable((len(rows), len(columns)), nonneg=True)
    mixture = counts if marginals is None else counts @ marginals
    sums = [cvxpy.sum(counts, axis=1) == rows / scale, cvxpy.sum(counts, axis=0) == columns / scale]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(mixture - goal / scale)), sums)
    problem.solve(solver=cvxpy.CLARABEL)
    if counts.value is None:
        raise ArithmeticError(f"the solver found no partition: {problem.status}")
    return project(np.maximum(np.asarray(counts.value) * scale, 0), rows, columns)
