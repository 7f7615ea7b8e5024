"""Partitions: every example at exactly one site, sizes and labels as the papers say (algorithms/partitioning)."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hansa.common.data.measures import c_score
from hansa.common.data.partition import KINDS, Iid, Key, NonIidL, Table, parse_partition, part, sizes
from hansa.common.data.partition.dirichlet import cross, draw_sizes, nearest, nearest_marginals
from hansa.common.data.partition.divide import ColorSkew, to_gray
from hansa.common.data.partition.feddaf import own_class_goal
from hansa.common.data.partition.folds import folds
from hansa.common.data.partition.metis import assign, class_counts, placement
from hansa.common.data.partition.moves import MarginalWalk, Moves, _corners, _walk, wander, wander_marginals
from hansa.common.data.partition.natural import Natural
from hansa.common.data.partition.sizes import shares
from hansa.common.data.partition.table import counts, deal
from hansa.common.data.partition.transport import balanced, project, rounded
from hansa.common.errors import InvalidInput, InvalidJob

TEN = np.repeat(np.arange(10), 5000)  # labels as CIFAR-10 has them
SEEDS = st.integers(0, 1 << 40)
QUICK = settings(max_examples=60, deadline=None)


def matrix_of(rows: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    classes = Key.of(labels)
    return counts(rows, classes.codes, len(classes.names))


def is_partition(rows: list[np.ndarray], total: int) -> bool:
    return sorted(np.concatenate(rows).tolist()) == list(range(total))


# §1 Sizes.


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50), st.integers(0, 100_000))
def test_sizes_add_up_and_are_off_by_less_than_one(given_shares: list[float], total: int) -> None:
    q = np.array(given_shares)
    found = sizes(q, total, least=0)
    assert found.sum() == total
    assert (found >= 0).all()
    assert (np.abs(found - q / q.sum() * total) < 1 + 1e-6).all()


@QUICK
@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 1000))
def test_nobody_gets_less_than_the_least_if_there_is_enough(q: list[float], least: int, more: int) -> None:
    total = least * len(q) + more
    found = sizes(np.array(q), total, least)
    assert found.sum() == total
    assert found.min() >= least


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(0, 10_000))
def test_equal_shares_differ_by_at_most_one_and_the_first_get_more(sites: int, total: int) -> None:
    found = sizes(np.ones(sites), total).tolist()
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


def test_the_largest_remainders_get_one_more() -> None:
    assert sizes(np.array([0.5, 0.25, 0.25]), 10).tolist() == [5, 3, 2]  # a tie goes to the lower index
    assert sizes(np.array([0.61, 0.19, 0.2]), 10).tolist() == [6, 2, 2]
    powerlaw = [25058, 8860, 4823, 3132, 2241, 1705, 1353, 1108, 928, 792]
    assert sizes(shares("powerlaw(1.5)", 10), 50_000).tolist() == powerlaw


def test_skewed_sizes_are_all_different_and_have_a_long_right_tail() -> None:
    found = sizes(shares("skewed", 10), 50_000)
    assert len(set(found.tolist())) == 10
    assert found.tolist() == sorted(found.tolist(), reverse=True)
    assert found.mean() > np.median(found)


# Invariants that every scheme has.

WORDS: list[dict[str, object]] = [
    {"kind": "iid"},
    {"kind": "non-iid-l", "labels": 3},
    {"kind": "non-iid-l", "labels": 3, "allow_uneven": True},
    {"sizes": "skewed", "classes": "iid"},
    {"sizes": "powerlaw(1.5)", "classes": "iid"},
    {"sizes": "powerlaw(1.1)", "classes": "4x2,3x2,2x6"},
    {"sizes": "uniform", "classes": 2},
    {"kind": "dirichlet", "classes": 0.5, "moves": {"burn_in": 2000, "search": 2000}},
    {"kind": "dirichlet", "sizes": 2, "classes": 1, "features": {"shape": 1}, "moves": {"burn_in": 500, "search": 500}},
    {"kind": "feddaf", "eta": 0.5, "shards": 20},
    {"kind": "mcmahan"},
    {"kind": "imbalance"},
    {"groups": "7 of 0-0 4 2, 3 of 6 8"},
    {"groups": "2 of 0 2, 5 of 2 4, 3 of 0 6 8"},
]


def small_table() -> Table:
    rng = np.random.default_rng(5)
    labels = rng.permutation(np.repeat(np.arange(5) * 2, [150, 160, 170, 180, 190]))
    return Table(labels, {"shape": Key.of(rng.integers(0, 3, len(labels)))})


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_every_row_lies_at_one_site_and_the_seed_decides_where(words: dict[str, object]) -> None:
    table, scheme = small_table(), parse_partition(words)
    once, again, other = (scheme.part(table, 10, seed).rows for seed in (1, 1, 2))
    assert len(once) == 10
    assert is_partition(once, len(table))
    assert all(len(rows) and rows.tolist() == sorted(rows.tolist()) for rows in once)
    assert [rows.tolist() for rows in once] == [rows.tolist() for rows in again]
    assert [rows.tolist() for rows in once] != [rows.tolist() for rows in other]


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_other_rows_of_a_class_change_nothing_but_that_class(words: dict[str, object]) -> None:
    table, scheme = small_table(), parse_partition(words)
    ours = np.flatnonzero(table.labels == 4)
    codes = table.keys["shape"].codes.copy()
    codes[ours] = np.random.default_rng(9).permutation(codes[ours])
    shuffled = Table(table.labels, {"shape": Key(codes, table.keys["shape"].names)})
    before, after = (scheme.part(each, 10, 1).rows for each in (table, shuffled))
    for one, other in zip(before, after, strict=True):
        assert np.setdiff1d(one, ours).tolist() == np.setdiff1d(other, ours).tolist()
        assert np.isin(one, ours).sum() == np.isin(other, ours).sum()


@pytest.mark.parametrize("words", [w for w in WORDS if w.get("kind") != "iid"], ids=str)
def test_how_classes_are_mixed_in_the_file_changes_nothing(words: dict[str, object]) -> None:
    table, scheme = small_table(), parse_partition(words)
    shape = table.keys["shape"]
    order = np.lexsort((np.arange(len(table)), shape.codes, -table.labels))  # cell by cell, each in its old order
    sorted_table = Table(table.labels[order], {"shape": Key(shape.codes[order], shape.names)})
    before, after = scheme.part(table, 10, 1).rows, scheme.part(sorted_table, 10, 1).rows
    if "features" not in words:  # those deal by class: the order within a class is what counts
        order = np.lexsort((np.arange(len(table)), -table.labels))
        after = scheme.part(Table(table.labels[order]), 10, 1).rows
    assert [rows.tolist() for rows in before] == [np.sort(order[rows]).tolist() for rows in after]


@QUICK
@given(st.integers(1, 6), st.integers(1, 6), st.data(), SEEDS)
def test_dealing_gives_exactly_what_the_matrix_says(sites: int, cells: int, data: st.DataObject, seed: int) -> None:
    matrix = np.array(
        data.draw(st.lists(st.lists(st.integers(0, 5), min_size=cells, max_size=cells), min_size=sites, max_size=sites))
    )
    spare = data.draw(st.integers(0, 3))
    codes = np.random.default_rng(seed).permutation(np.repeat(np.arange(cells), matrix.sum(axis=0) + spare))
    rows = deal(matrix, codes, np.random.default_rng(seed))
    assert (counts(rows, codes, cells) == matrix).all()
    dealt = np.concatenate(rows).tolist()
    assert len(dealt) == len(set(dealt)) == matrix.sum()


# §2 Metis.


@QUICK
@given(st.integers(1, 12), st.integers(1, 8), st.sampled_from([1, 20, 3000]), SEEDS)
def test_sizes_and_classes_that_are_possible_are_met_exactly(sites: int, classes: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    example = rng.integers(1, most + 1, (sites, classes)) ** rng.integers(1, 3, classes)  # classes very unequal
    for row, count in zip(example, rng.integers(1, classes + 1, sites), strict=True):
        row[rng.permutation(classes)[count:]] = 0
    example = example[:, example.any(axis=0)]  # there is such a partition: this one
    rows, wanted, capacity = example.sum(axis=1), (example > 0).sum(axis=1), example.sum(axis=0)
    matrix = assign(rows, wanted, capacity, np.random.default_rng(seed))
    assert matrix.sum(axis=1).tolist() == rows.tolist()
    assert matrix.sum(axis=0).tolist() == capacity.tolist()
    assert (matrix > 0).sum(axis=1).tolist() == wanted.tolist()
    again = assign(rows, wanted, capacity, np.random.default_rng(seed))
    assert (matrix == again).all()


def some_choice_fits(rows: np.ndarray, wanted: np.ndarray, capacity: np.ndarray) -> bool:
    """Try every choice of classes at every site."""
    width = len(capacity)
    choices = [list(combinations(range(width), count)) for count in wanted.tolist()]
    for chosen in product(*choices):
        support = np.array([np.isin(np.arange(width), mine) for mine in chosen])
        goal = np.where(support, 1, 0)
        if balanced(goal, support, rows, capacity) is not None:
            return True
    return False


@QUICK
@given(st.integers(1, 4), st.integers(1, 3), st.data(), SEEDS)
def test_only_what_is_impossible_is_refused(sites: int, classes: int, data: st.DataObject, seed: int) -> None:
    capacity = np.array(data.draw(st.lists(st.integers(1, 30), min_size=classes, max_size=classes)))
    assume(capacity.sum() >= sites)
    rows = sizes(shares(data.draw(st.sampled_from(["uniform", "skewed", "powerlaw(1.5)"])), sites), int(capacity.sum()))
    wanted = np.array(data.draw(st.lists(st.integers(1, classes), min_size=sites, max_size=sites)))
    if some_choice_fits(rows, wanted, capacity):
        matrix = assign(rows, wanted, capacity, np.random.default_rng(seed))
        assert (matrix > 0).sum(axis=1).tolist() == wanted.tolist()
    else:
        with pytest.raises(InvalidInput, match=r"(?!.*could not tell).*site"):
            assign(rows, wanted, capacity, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(3))
def test_very_unequal_classes_can_be_shared(seed: int) -> None:
    covertype = np.array([211_840, 283_301, 35_754, 2747, 9493, 17_367, 20_510])
    rows = sizes(np.ones(10), int(covertype.sum()))
    matrix = assign(rows, np.full(10, 2), covertype, np.random.default_rng(seed))
    assert matrix.sum(axis=1).tolist() == rows.tolist()
    assert matrix.sum(axis=0).tolist() == covertype.tolist()
    assert ((matrix > 0).sum(axis=1) == 2).all()


@pytest.mark.parametrize("head", ["8x1,7x1,6x1,5x7", "8x1,4x1,3x8"])
@pytest.mark.parametrize("seed", range(5))
def test_the_papers_head_forms_fit_cifar_10(head: str, seed: int) -> None:
    rows = part(parse_partition({"sizes": "powerlaw(1.5)", "classes": head}), TEN, 10, seed)
    matrix = matrix_of(rows, TEN)
    assert matrix.sum(axis=1).tolist() == [25058, 8860, 4823, 3132, 2241, 1705, 1353, 1108, 928, 792]
    assert (matrix > 0).sum(axis=1).tolist() == class_counts(head, 10).tolist()


def test_the_papers_head_form_fits_cifar_100() -> None:
    labels = np.repeat(np.arange(100), 500)
    words = {"sizes": "powerlaw(1.5)", "classes": "84x1,76x1,68x1,64x1,55x1,50x5"}
    matrix = matrix_of(part(parse_partition(words), labels, 10, 1990), labels)
    assert (matrix > 0).sum(axis=1).tolist() == [84, 76, 68, 64, 55, 50, 50, 50, 50, 50]


@pytest.mark.parametrize(
    ("labels", "words", "said"),
    [
        (
            TEN,
            {"sizes": "powerlaw(1.5)", "classes": 5},
            "site-1 needs 25058 examples, but 5 classes hold 25000 at most",
        ),
        (TEN, {"classes": 11}, "site-1 is to have 11 classes, but there are 10"),
        (TEN, {"classes": "3x4"}, "the list is for 4 sites, but there are 10"),
        (np.repeat(np.arange(16), [1000] + 15 * [1]), {"classes": 1}, "leave some of the 16 classes to nobody"),
        (np.arange(20) % 10, {"classes": 3}, "site-1 has 2 examples, too few for 3 classes"),
        (
            np.repeat(np.arange(3), [501, 302, 197]),
            {"classes": 1},
            r"10 sites with 10 classes in all fall apart .* site-1 \(100 examples of 1 class\) and others need more",
        ),
        (
            np.repeat(np.arange(3), [500, 301, 199]),
            {"classes": 1},
            "whichever classes a site takes; the largest is site-1",
        ),
    ],
)
def test_impossible_sizes_and_classes_name_the_site_and_the_reason(
    labels: np.ndarray, words: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        part(parse_partition(words), labels, 10, 1)


def test_an_empty_class_is_refused() -> None:
    with pytest.raises(InvalidInput, match="class 1 has no examples"):
        assign(np.array([5, 5]), np.array([1, 1]), np.array([10, 0]), np.random.default_rng(1))


@QUICK
@given(st.integers(1, 12), st.lists(st.integers(1, 300), min_size=1, max_size=8), SEEDS)
def test_iid_classes_are_in_proportion_at_every_site(sites: int, held: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(held)), held)
    assume(sites <= len(labels))
    matrix = matrix_of(part(parse_partition({"sizes": "skewed", "classes": "iid"}), labels, sites, seed), labels)
    exact = np.outer(matrix.sum(axis=1), held) / len(labels)
    assert (np.abs(matrix - exact) < 1 + 1e-6).all()


def test_machines_are_dealt_fast_and_slow_in_turns_by_size() -> None:
    assert placement(np.array([5, 9, 7, 1])) == ["fast", "fast", "slow", "slow"]


# §3 IID and Non-IID-L.


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), SEEDS)
def test_iid_gives_every_row_to_one_site_in_equal_parts(total: int, sites: int, seed: int) -> None:
    assume(sites <= total)
    rows = part(Iid(), np.zeros(total, np.int64), sites, seed)
    assert is_partition(rows, total)
    assert len(rows) == sites
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.data(), SEEDS)
def test_non_iid_gives_every_site_equal_parts_of_l_classes(
    classes: int, sites: int, data: st.DataObject, seed: int
) -> None:
    count = data.draw(st.integers(1, classes))
    assume(sites * count % classes == 0)
    parts = sites * count // classes
    held = data.draw(st.lists(st.integers(parts, parts + 30), min_size=classes, max_size=classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes) * 3, held))
    matrix = matrix_of(part(NonIidL(labels=count), labels, sites, seed), labels)
    assert matrix.sum() == len(labels)
    assert ((matrix > 0).sum(axis=1) == count).all()
    assert ((matrix > 0).sum(axis=0) == parts).all()
    for column in matrix.T:
        assert column.max() - column[column > 0].min() <= 1


def test_uneven_slots_are_shared_if_asked_for() -> None:
    labels = np.arange(100) % 4
    matrix = matrix_of(part(NonIidL(labels=2, allow_uneven=True), labels, 3, 1), labels)
    assert (matrix > 0).sum(axis=1).tolist() == [2, 2, 2]
    assert sorted(matrix.sum(axis=1).tolist()) == [33, 33, 34]


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InvalidInput, match="3 sites × 2 labels is no multiple of 4 classes"):
        part(NonIidL(labels=2), np.arange(100) % 4, 3, 1)
    with pytest.raises(InvalidInput, match="3 labels for each site, but there are only 2"):
        part(NonIidL(labels=3), np.arange(10) % 2, 2, 1)
    with pytest.raises(InvalidInput, match="class 7 has 3 examples, too few for the 10 sites that are to share it"):
        part(NonIidL(labels=2), np.repeat([4, 7], [97, 3]), 10, 1)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"natural", "color-skew"}))
def test_more_sites_than_examples_are_refused(kind: str) -> None:
    needed: dict[str, dict[str, object]] = {"non-iid-l": {"labels": 1}, "groups": {"groups": "4 of 0"}}
    words = {"kind": kind} | needed.get(kind, {})
    with pytest.raises(InvalidInput, match="4 sites cannot share 3 examples"):
        parse_partition(words).part(Table(np.zeros(3, np.int64)), 4, 1)


@pytest.mark.parametrize("words", [w for w in WORDS if w.get("kind") != "iid"], ids=str)
def test_labels_that_are_not_integers_are_refused(words: dict[str, object]) -> None:
    table = small_table()
    for labels, said in ((table.labels + 0.5, "not integers"), (np.full(len(table), np.nan), "row 0 is NaN")):
        with pytest.raises(InvalidInput, match=said):
            parse_partition(words).part(Table(labels, table.keys), 10, 1)


# §4 Dirichlet.


@QUICK
@given(st.integers(2, 9), st.integers(2, 7), SEEDS)
def test_the_solver_and_the_alternating_projection_find_the_same_matrix(sites: int, classes: int, seed: int) -> None:
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
    corners = _corners(sites, classes, 400, rng)
    steps, losses = _walk(start, goal, corners, (rng.random(400) * 0.5).tolist())
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
    with pytest.raises(InvalidInput, match="left a site without examples in 100 draws"):
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


# §5 Rounding.


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


# Groups.


def test_groups_of_sites_have_classes_of_their_own_in_equal_parts() -> None:
    labels = np.repeat(np.arange(10), 600)
    matrix = matrix_of(part(parse_partition({"groups": "16 of 0-4, 4 of 5-9"}), labels, 20, 1), labels)
    assert not matrix[:16, 5:].any()
    assert not matrix[16:, :5].any()
    assert set(matrix[:16, :5].ravel().tolist()) == {37, 38}
    assert (matrix[16:, 5:] == 150).all()


def test_sites_of_groups_may_be_of_one_size_and_the_rest_is_not_used() -> None:
    labels = np.repeat(np.arange(10), 600)
    words = {"groups": "16 of 0-4, 4 of 5-9", "most": 103}
    rows = part(parse_partition(words), labels, 20, 1)
    assert [len(mine) for mine in rows] == [103] * 20
    assert len({*np.concatenate(rows).tolist()}) == 20 * 103
    matrix = matrix_of(rows, labels)
    assert set(matrix[:16, :5].ravel().tolist()) == {20, 21}
    drawn = [len(mine) for mine in part(parse_partition({**words, "least": 50}), labels, 20, 1)]
    assert min(drawn) >= 50
    assert max(drawn) <= 103
    assert len(set(drawn)) > 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"groups": "16 of 0-4, 4 of 5-8"}, "no group has class 9"),
        ({"groups": "16 of 0-4, 4 of 5-12"}, "there is no class 10; classes are 0, 1, "),
        ({"groups": "16 of 0-4, 3 of 5-9"}, "they are 19 sites, but data.sites is 20"),
        ({"groups": "16 of 0-4, 4 of 5-9", "most": 1000}, "3200 examples of class 0; it has 600"),
        ({"groups": "16 of 0-4, 4 of 5-9", "most": 10, "least": 11}, "least: 11 is more than most"),
        ({"groups": "16x0-4"}, "names no sites and classes; write for example 16 of 0-4, 4 of 5-9"),
        ({"groups": "0 of 0-4"}, "names no sites"),
        ({"groups": "16 of 4-0, 4 of 5-9"}, "4-0: the first class is larger than the last"),
    ],
    ids=str,
)
def test_groups_that_cannot_be_are_refused(words: dict[str, object], said: str) -> None:
    labels = np.repeat(np.arange(10), 600)
    with pytest.raises((InvalidInput, InvalidJob), match=said):
        part(parse_partition(words), labels, 20, 1)


def test_a_site_of_a_group_has_at_least_one_example() -> None:
    labels = np.repeat(np.arange(2), [100, 2])
    with pytest.raises(InvalidInput, match="site 5 would have no examples"):
        part(parse_partition({"groups": "2 of 0, 3 of 1"}), labels, 5, 1)


# §7 Shards.


@QUICK
@given(st.integers(2, 20), st.integers(2, 8), st.floats(0, 1), SEEDS)
def test_the_own_class_has_exactly_its_share_in_the_goal(sites: int, classes: int, eta: float, seed: int) -> None:
    goal = own_class_goal(eta, sites, classes, np.random.default_rng(seed))
    assert goal.sum(axis=1) == pytest.approx(1)
    assert goal[np.arange(sites), np.arange(sites) % classes] == pytest.approx(eta)
    assert goal.min() >= 0


def test_with_eta_one_each_site_has_only_its_class_and_skew_grows_with_eta() -> None:
    labels = np.arange(20_000) % 10
    found = {}
    for eta in (0.25, 0.5, 0.75, 1.0):
        rows = part(parse_partition({"kind": "feddaf", "eta": eta}), labels, 50, 1)
        found[eta] = matrix_of(rows, labels)
    for site, row in enumerate(found[1.0]):
        assert np.flatnonzero(row).tolist() == [site % 10]
    scores = [c_score(matrix) for matrix in found.values()]
    assert scores == sorted(scores)
    assert scores == pytest.approx([0.71, 0.90, 1.30, 1.80], abs=0.06)


def test_a_class_with_fewer_examples_than_shards_is_refused() -> None:
    with pytest.raises(InvalidInput, match="class 3 has 20 examples, fewer than 200 shards"):
        part(parse_partition({"kind": "feddaf"}), np.repeat([1, 3], [300, 20]), 4, 1)


@QUICK
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 200), SEEDS)
def test_sorted_shards_are_dealt_once(sites: int, each: int, more: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 5, sites * each + more)
    rows = part(parse_partition({"kind": "mcmahan", "per_site": each}), labels, sites, seed)
    assert is_partition(rows, len(labels))
    order = np.argsort(labels, kind="stable").argsort()  # each row's place when sorted by label
    for mine in rows:
        runs = 1 + int((np.diff(np.sort(order[mine])) > 1).sum())
        assert runs <= each
    with pytest.raises(InvalidInput, match="shards, not"):
        part(parse_partition({"kind": "mcmahan", "per_site": each, "shards": sites * each + 1}), labels, sites, seed)


# §8 Colour, imbalance, natural keys.


@pytest.mark.parametrize("gray", ["red", "luma"])
def test_colour_skew_makes_exactly_the_stated_share_of_each_class_gray(gray: str) -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 37)
    x = rng.integers(0, 256, (len(labels), 3, 4, 4)).astype(np.uint8)
    scheme = ColorSkew.model_validate({"gray": gray})
    rows = scheme.part(Table(labels), 2, 7).rows
    assert is_partition(rows, len(labels))
    assert [len(np.unique(labels[mine])) for mine in rows] == [3, 3]
    painted = scheme.paint(x, labels, 7, test=False)
    changed = (painted[:, 0] == painted[:, 1]).all(axis=(1, 2)) & (painted[:, 0] == painted[:, 2]).all(axis=(1, 2))
    assert (painted[~changed] == x[~changed]).all()
    for mine, share in zip(rows, (0.95, 0.05), strict=True):
        for label in np.unique(labels[mine]):
            assert changed[labels == label].sum() == int(share * 37)
    tested = scheme.paint(x, labels, 7, test=True)
    assert (tested[:, 0] == tested[:, 1]).all(axis=(1, 2)).sum() == 6 * 18
    if gray == "red":
        assert (painted[changed][:, 1] == x[changed][:, 0]).all()


def test_luma_weighs_the_channels() -> None:
    pixel = np.array([255, 0, 0], np.uint8).reshape(1, 3, 1, 1)
    assert to_gray(pixel, "luma").ravel().tolist() == [76, 76, 76]


def test_colour_skew_is_for_two_sites_and_colour_images() -> None:
    with pytest.raises(InvalidInput, match="for 2 sites, not 3"):
        ColorSkew().part(Table(TEN), 3, 1)
    with pytest.raises(InvalidInput, match="needs colour images"):
        ColorSkew().paint(np.zeros((4, 28, 28)), np.arange(4), 1, test=False)


@QUICK
@given(st.integers(2, 10), st.integers(1, 8), SEEDS)
def test_imbalanced_sites_have_at_least_ten_examples(sites: int, classes: int, seed: int) -> None:
    labels = np.repeat(np.arange(classes), 60)
    assume(10 * sites <= len(labels) / 3)
    rows = part(parse_partition({"kind": "imbalance"}), labels, sites, seed)
    assert is_partition(rows, len(labels))
    assert min(map(len, rows)) >= 10


def test_imbalance_that_asks_for_too_much_is_refused() -> None:
    with pytest.raises(InvalidInput, match="20 sites with 10 examples each need 200, but there are 100"):
        part(parse_partition({"kind": "imbalance"}), np.arange(100) % 2, 20, 1)


def test_a_natural_key_makes_a_site_of_each_value() -> None:
    values = np.array(["va", "cleveland", "va", "long beach", "cleveland", "va"])
    table = Table(np.zeros(6, np.int64), {"hospital": Key.of(values)})
    parts = Natural(by="hospital").part(table, 3, 1)
    assert parts.names == ("cleveland", "long-beach", "va")
    assert [rows.tolist() for rows in parts.rows] == [[1, 4], [3], [0, 2, 5]]
    some = Natural(by="hospital", least=2).part(table, 1, 1)
    assert some.names in (("cleveland",), ("va",))
    with pytest.raises(InvalidInput, match="3 sites cannot be made of 2 values of hospital with 2 examples or more"):
        Natural(by="hospital", least=2).part(table, 3, 1)
    with pytest.raises(InvalidInput, match="did you mean 'hospital'"):
        Natural(by="hospitl").part(table, 2, 1)


def test_values_that_are_numbers_or_look_alike_still_make_names() -> None:
    table = Table(np.zeros(4, np.int64), {"writer": Key.of(np.array([17, 17, 4, 4]))})
    assert Natural(by="writer").part(table, 2, 1).names == ("writer-4", "writer-17")
    table = Table(np.zeros(2, np.int64), {"role": Key.of(np.array(["A/B", "A B"]))})
    assert Natural(by="role").part(table, 2, 1).names == ("A-B-1", "A-B-2")
    table = Table(np.zeros(2, np.int64), {"fold": Key.of(np.array(["test", "other"]))})
    assert Natural(by="fold").part(table, 2, 1).names == ("other", "fold-test"), "test.npz is the test set"


# §9 Folds.


@QUICK
@given(st.integers(5, 150), SEEDS)
def test_every_site_tests_once_and_no_site_has_two_parts(sites: int, seed: int) -> None:
    found = folds(range(sites), seed)
    assert len(found) == 5
    assert sorted(site for fold in found for site in fold.test) == list(range(sites))
    assert sorted(site for fold in found for site in fold.validation) == list(range(sites))
    for fold in found:
        assert sorted(fold.test + fold.validation + fold.train) == list(range(sites))


def test_folds_have_the_sizes_of_the_paper_and_nest() -> None:
    assert {(len(f.train), len(f.validation), len(f.test)) for f in folds(range(100), 1)} == {(60, 20, 20)}
    first = folds(range(143), 1)[0]
    assert (len(first.train), len(first.validation), len(first.test)) == (85, 29, 29)
    nested = folds(range(20), 1, nested=True)
    assert len({(f.test, f.validation) for f in nested}) == len(nested) == 20
    with pytest.raises(InvalidInput, match="4 sites cannot make 5 folds"):
        folds(range(4), 1)


# Words.


def test_a_scheme_is_told_from_its_words() -> None:
    assert parse_partition({}) == Iid()
    assert parse_partition({"kind": "non-iid-l", "labels": 4}) == NonIidL(labels=4)
    assert parse_partition({"by": "writer"}) == Natural(by="writer")
    for words, kind in (({"classes": 3}, "metis"), ({"features": "soil=1"}, "dirichlet"), ({"labels": 2}, "non-iid-l")):
        assert isinstance(parse_partition(words), KINDS[kind])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"kind": "non-iid"}, "data.partition.kind: there is no 'non-iid' (did you mean 'non-iid-l'"),
        ({"kind": "dirchlet"}, "did you mean 'dirichlet'"),
        ({"kind": ["iid"]}, "data.partition.kind: "),
        ({"kind": "non-iid-l"}, "data.partition.labels: is required"),
        ({"kind": "non-iid-l", "labels": 0}, "data.partition.labels: "),
        ({"kind": "iid", "label": 3}, "data.partition.label: unknown key"),
        ({"sizes": "powerlow(2)"}, "data.partition.sizes: there is no 'powerlow(2)' (did you mean 'powerlaw'"),
        ({"sizes": "uniform(2)"}, "uniform takes no number"),
        ({"sizes": "skewed(9999)"}, "skewed(9999): 100 is the steepest"),
        ({"classes": "8x1;4x1"}, "data.partition.classes: '8x1;4x1': write iid, a number"),
        ({"classes": "²"}, "data.partition.classes: '²': write iid, a number"),
        ({"kind": "dirichlet", "moves": {"stop_band": [1.2, 1.1]}}, "the smaller one first"),
        ({"kind": "dirichlet", "features": "soil"}, "write KEY=THETA"),
        ({"kind": "dirichlet", "features": {"soil": 0}}, "soil: θ must be above 0"),
        ({"kind": "dirichlet", "moves": {"brun_in": 3}}, "data.partition.moves.brun_in: unknown key"),
    ],
)
def test_a_wrong_partition_is_refused_naming_the_field(words: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_partition(words)
    assert said in str(caught.value)
