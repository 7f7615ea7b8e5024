"""Partitions: every example is at exactly one site, with sizes and labels as in the papers (partitioning)."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hansa.common.data.partition import KINDS, Iid, Key, NonIidL, Table, parse_partition, part, sizes
from hansa.common.data.partition.folds import folds
from hansa.common.data.partition.natural import Natural
from hansa.common.data.partition.sizes import shares
from hansa.common.data.partition.table import counts, deal
from hansa.common.values.errors import InvalidInput, InvalidJob
from tests.unit.data.tables import QUICK, SEEDS, is_partition, matrix_of, small_table

# partitioning §1: Sizes.


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
def test_no_site_gets_less_than_the_least_if_there_is_enough(q: list[float], least: int, more: int) -> None:
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
    {
        "kind": "dirichlet",
        "sizes": 2,
        "classes": 1,
        "features": {"shape": 1},
        "moves": {"burn_in": 500, "search": 500},
    },
    {"kind": "feddaf", "eta": 0.5, "shards": 20},
    {"kind": "mcmahan"},
    {"kind": "imbalance"},
    {"groups": "7 of 0-0 4 2, 3 of 6 8"},
    {"groups": "2 of 0 2, 5 of 2 4, 3 of 0 6 8"},
]


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
    # Sorted by cell; each cell keeps its order.
    order = np.lexsort((np.arange(len(table)), shape.codes, -table.labels))
    sorted_table = Table(table.labels[order], {"shape": Key(shape.codes[order], shape.names)})
    before, after = scheme.part(table, 10, 1).rows, scheme.part(sorted_table, 10, 1).rows
    if "features" not in words:  # these deal by class, so the order within a class counts
        order = np.lexsort((np.arange(len(table)), -table.labels))
        after = scheme.part(Table(table.labels[order]), 10, 1).rows
    assert [rows.tolist() for rows in before] == [np.sort(order[rows]).tolist() for rows in after]


@QUICK
@given(st.integers(1, 6), st.integers(1, 6), st.data(), SEEDS)
def test_dealing_gives_exactly_what_the_matrix_says(
    sites: int, cells: int, data: st.DataObject, seed: int
) -> None:
    matrix = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(0, 5), min_size=cells, max_size=cells), min_size=sites, max_size=sites
            )
        )
    )
    spare = data.draw(st.integers(0, 3))
    codes = np.random.default_rng(seed).permutation(np.repeat(np.arange(cells), matrix.sum(axis=0) + spare))
    rows = deal(matrix, codes, np.random.default_rng(seed))
    assert (counts(rows, codes, cells) == matrix).all()
    dealt = np.concatenate(rows).tolist()
    assert len(dealt) == len(set(dealt)) == matrix.sum()


# partitioning §3: IID and Non-IID-L.


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
    with pytest.raises(InvalidInput, match="3 sites × 2 labels is not a multiple of 4 classes"):
        part(NonIidL(labels=2), np.arange(100) % 4, 3, 1)
    with pytest.raises(InvalidInput, match="3 labels for each site, but there are only 2"):
        part(NonIidL(labels=3), np.arange(10) % 2, 2, 1)
    with pytest.raises(InvalidInput, match="class 7 has 3 examples, too few for the 10 sites that share it"):
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
        ({"groups": "16 of 0-4, 3 of 5-9"}, "they have 19 sites, but data.sites is 20"),
        ({"groups": "16 of 0-4, 4 of 5-9", "most": 1000}, "3200 examples of class 0, which has 600"),
        ({"groups": "16 of 0-4, 4 of 5-9", "most": 10, "least": 11}, "least: 11 is more than most"),
        ({"groups": "16x0-4"}, "does not name sites and classes; write for example 16 of 0-4, 4 of 5-9"),
        ({"groups": "0 of 0-4"}, "does not name sites"),
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


# partitioning §9: Folds.


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


# Parameters.


def test_the_kind_of_a_scheme_is_implied_by_its_parameters() -> None:
    assert parse_partition({}) == Iid()
    assert parse_partition({"kind": "non-iid-l", "labels": 4}) == NonIidL(labels=4)
    assert parse_partition({"by": "writer"}) == Natural(by="writer")
    for words, kind in (
        ({"classes": 3}, "metis"),
        ({"features": "soil=1"}, "dirichlet"),
        ({"labels": 2}, "non-iid-l"),
    ):
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
        (
            {"sizes": "powerlow(2)"},
            "data.partition.sizes: there is no 'powerlow(2)' (did you mean 'powerlaw'",
        ),
        ({"sizes": "uniform(2)"}, "uniform takes no number"),
        ({"sizes": "skewed(9999)"}, "skewed(9999): the number must be at most 100"),
        ({"classes": "9" * 5000}, "data.partition.classes: '9"),
        ({"classes": f"1x{'9' * 5000}"}, "data.partition.classes: '1x9"),
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
