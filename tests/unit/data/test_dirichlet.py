"""Partitions by Dirichlet draws, and rounding (partitioning §4, §5)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.data.measures import c_score
from hansa.common.data.partition import Key, parse_partition, part
from hansa.common.data.partition.dirichlet import cross, draw_sizes, nearest, nearest_marginals
from hansa.common.data.partition.moves import MarginalWalk, Moves, rectangles, walk, wander, wander_marginals
from hansa.common.data.partition.table import counts
from hansa.common.data.partition.transport import project, rounded
from hansa.common.values.errors import InvalidInput
from tests.unit.data.tables import QUICK, SEEDS, TEN, matrix_of, small_table

# partitioning §4: Dirichlet.


@QUICK
@given(st.integers(2, 9), st.integers(2, 7), SEEDS)
def test_the_solver_and_the_alternating_projection_find_the_same_matrix(
    sites: int, classes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.integers(sites, 500, classes)
    rows = draw_sizes(1.0, sites, int(columns.sum()), rng)
    goal = rng.dirichlet(np.full(classes, 0.3), size=sites) * rows[:, None]
    by_solver, by_projection = nearest(goal, rows, columns), project(goal, rows, columns)
    assert (by_solver >= 0).all()
    assert np.abs(by_solver.sum(axis=1) - rows).max() <= 1e-9 * rows.sum()
    assert np.abs(by_solver.sum(axis=0) - columns).max() <= 1e-9 * rows.sum()
    losses = [((found - goal) ** 2).sum() for found in (by_solver, by_projection)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-4)


def test_marginals_are_met_exactly_where_the_data_allow_it() -> None:
    codes = np.repeat(np.arange(6), 100)
    grid = cross([Key(codes // 3, ("a", "b")), Key(codes % 3, ("x", "y", "z"))])
    rows, columns = np.array([300, 300]), np.full(6, 100)
    goal = np.array([[200, 100, 120, 100, 80], [100, 200, 80, 100, 120]], float)
    found = nearest_marginals(goal, grid.marginals, rows, columns)
    assert np.abs(found @ grid.marginals - goal).max() < 1e-2


@QUICK
@given(st.integers(2, 8), st.integers(2, 6), SEEDS)
def test_a_walk_keeps_the_sums_and_its_running_loss_is_the_loss(sites: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.random((sites, classes)) * 100 * (rng.random((sites, classes)) > 0.2)
    goal = rng.random((sites, classes)) * 100
    corners = rectangles(sites, classes, 400, rng)
    steps, losses = walk(start, goal, corners, (rng.random(400) * 0.5).tolist())
    held = start.ravel().copy()
    for move in range(400):
        for sign, places in zip((-1, -1, 1, 1), corners, strict=True):
            held[places[move]] += sign * steps[move]
        assert losses[move + 1] == pytest.approx(((held - goal.ravel()) ** 2).sum(), rel=1e-9)
    assert held.min() >= 0
    total = max(start.sum(), 1)
    found = held.reshape(start.shape)
    assert np.abs(found.sum(axis=1) - start.sum(axis=1)).max() <= 1e-9 * total
    assert np.abs(found.sum(axis=0) - start.sum(axis=0)).max() <= 1e-9 * total


@QUICK
@given(st.integers(2, 8), SEEDS)
def test_a_walk_over_marginals_keeps_the_sums_and_its_running_loss_is_the_loss(sites: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    marginals = cross([Key(np.arange(6) // 3, ("a", "b")), Key(np.arange(6) % 3, ("x", "y", "z"))]).marginals
    start = rng.random((sites, 6)) * 100
    goal = rng.random((sites, 5)) * 100
    walk = MarginalWalk(start, goal, marginals)
    for _ in range(30):
        moves = walk.stride(0.5, 10, rng)
        for count in range(1, moves + 1):
            loss = ((walk.after(count) @ marginals - goal) ** 2).sum()
            assert walk.losses[count - 1] == pytest.approx(loss, rel=1e-9)
    assert walk.held.min() >= 0
    assert np.abs(walk.held.sum(axis=1) - start.sum(axis=1)).max() <= 1e-9 * start.sum()
    assert np.abs(walk.held.sum(axis=0) - start.sum(axis=0)).max() <= 1e-9 * start.sum()


@pytest.mark.parametrize("band", [None, (1.01, 1.2)])
def test_a_walk_leaves_the_optimum_but_not_far(band: tuple[float, float] | None) -> None:
    rng = np.random.default_rng(1)
    rows = draw_sizes(1.0, 50, len(TEN), rng)
    columns = np.full(10, 5000)
    goal = rng.dirichlet(np.full(10, 0.3), size=50) * rows[:, None]
    best = nearest(goal, rows, columns)
    walked = wander(best, goal, Moves(burn_in=40_000, search=1000, stop_band=band), rng)
    optimum, far = (np.sqrt(((found - goal) ** 2).sum()) for found in (best, walked))
    assert np.abs(walked - best).max() > 1
    assert 1 <= far / optimum < 1.2
    if band:
        assert far / optimum == pytest.approx(1.01, abs=0.005)


def test_a_search_returns_the_best_state_it_saw() -> None:
    rng = np.random.default_rng(1)
    start = np.full((6, 4), 100.0)  # far from the goal: moves can improve
    goal = rng.random((6, 4)) * 200
    moves = Moves(burn_in=0, search=5000, step=0.1)
    for found in (
        wander(start, goal, moves, np.random.default_rng(2)),
        wander_marginals(start, goal, np.eye(4), moves, np.random.default_rng(2)),
    ):
        loss = ((found - goal) ** 2).sum()
        assert loss < ((start - goal) ** 2).sum()


def test_a_site_without_data_is_drawn_again_and_in_the_end_refused() -> None:
    assert draw_sizes(1.0, 20, 200, np.random.default_rng(1)).min() >= 1
    with pytest.raises(InvalidInput, match="each of 100 draws left one of 20 sites without examples"):
        draw_sizes(0.001, 20, 200, np.random.default_rng(1))


def test_features_are_skewed_at_the_sites() -> None:
    table = small_table()
    words = {"kind": "dirichlet", "sizes": 50, "classes": 50, "features": "shape=0.05", "randomise": False}
    rows = parse_partition(words).part(table, 10, 3).rows
    shape = table.keys["shape"].codes
    assert c_score(counts(rows, shape, 3)) > 0.6
    assert c_score(matrix_of(rows, table.labels)) < 0.3


def test_features_that_do_not_exist_are_refused_with_the_nearest_names() -> None:
    with pytest.raises(InvalidInput, match="there is no key 'shpae' \\(did you mean 'shape'"):
        parse_partition({"kind": "dirichlet", "features": {"shpae": 1}}).part(small_table(), 10, 1)
    with pytest.raises(InvalidInput, match="this data set has no keys"):
        part(parse_partition({"features": {"soil": 1}}), TEN, 10, 1)


# partitioning §5: Rounding.


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 10), SEEDS, st.floats(0, 1))
def test_rounding_is_exact_and_moves_no_cell_by_one(sites: int, cells: int, seed: int, zeros: float) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 50, (sites, cells)) * (rng.random((sites, cells)) > zeros)
    rows, columns = whole.sum(axis=1), whole.sum(axis=0)
    exact = project(rng.random((sites, cells)) * 30, rows, columns)
    found = rounded(exact, rows, columns)
    assert found.sum(axis=1).tolist() == rows.tolist()
    assert found.sum(axis=0).tolist() == columns.tolist()
    assert found.min() >= 0
    assert np.abs(found - exact).max() < 1 + 1e-6
