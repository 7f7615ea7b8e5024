"""Partitions of Metis's experiments: sizes × classes (partitioning §2)."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hansa.common.data.partition import parse_partition, part, sizes
from hansa.common.data.partition.metis import assign, class_counts, placement
from hansa.common.data.partition.sizes import shares
from hansa.common.data.partition.transport import balanced
from hansa.common.values.errors import InvalidInput
from tests.unit.data.tables import QUICK, SEEDS, TEN, matrix_of

# partitioning §2: Metis.


@QUICK
@given(st.integers(1, 12), st.integers(1, 8), st.sampled_from([1, 20, 3000]), SEEDS)
def test_sizes_and_classes_that_are_possible_are_met_exactly(
    sites: int, classes: int, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    # The classes are very unequal.
    example = rng.integers(1, most + 1, (sites, classes)) ** rng.integers(1, 3, classes)
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
    rows = sizes(
        shares(data.draw(st.sampled_from(["uniform", "skewed", "powerlaw(1.5)"])), sites), int(capacity.sum())
    )
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
        (TEN, {"classes": 11}, "site-1 should have 11 classes, but there are 10"),
        (TEN, {"classes": "3x4"}, "the list is for 4 sites, but there are 10"),
        (
            np.repeat(np.arange(16), [1000] + 15 * [1]),
            {"classes": 1},
            "leave some of the 16 classes without a site",
        ),
        (np.arange(20) % 10, {"classes": 3}, "site-1 has 2 examples, too few for 3 classes"),
        (
            np.repeat(np.arange(3), [501, 302, 197]),
            {"classes": 1},
            r"10 sites with 10 classes in all fall apart .* site-1 \(100 examples of 1 class\) and others",
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
    matrix = matrix_of(
        part(parse_partition({"sizes": "skewed", "classes": "iid"}), labels, sites, seed), labels
    )
    exact = np.outer(matrix.sum(axis=1), held) / len(labels)
    assert (np.abs(matrix - exact) < 1 + 1e-6).all()


def test_machines_are_dealt_fast_and_slow_in_turns_by_size() -> None:
    assert placement(np.array([5, 9, 7, 1])) == ["fast", "fast", "slow", "slow"]
