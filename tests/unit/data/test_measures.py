"""Measures of a partition (partitioning §6)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.data.measures import c_score, divergences, measure


def test_one_class_per_site_has_the_highest_score() -> None:
    assert c_score(np.eye(10, dtype=int) * 7) == pytest.approx(1.8)
    assert c_score(np.repeat(np.eye(4, dtype=int), 3, axis=0)) == pytest.approx(2 * (1 - 1 / 4))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=8)
)
def test_proportional_sites_score_zero(classes: list[int], sites: list[int]) -> None:
    assert c_score(np.outer(sites, classes)) == pytest.approx(0, abs=1e-12)
    assert divergences(np.outer(sites, classes)).max() == pytest.approx(0, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1 << 32))
def test_measures_stay_within_their_ranges(sites: int, classes: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).integers(0, 30, (sites, classes))
    matrix[0, 0] += 1
    found = measure(matrix)
    assert 0 <= found.c_score < 2
    assert 0 <= found.divergence <= found.divergence_most <= 1
    assert found.examples == matrix.sum()


def test_sites_without_data_do_not_count() -> None:
    assert c_score(np.array([[5, 5], [0, 0], [5, 5]])) == 0
    assert c_score(np.zeros((2, 2))) == 0


def test_sites_without_a_common_class_are_one_bit_apart() -> None:
    apart = divergences(np.array([[3, 0], [0, 9], [1, 1]]))
    assert apart[0, 1] == apart[1, 0] == pytest.approx(1)
    assert apart[0, 0] == 0
    assert apart[0, 2] == pytest.approx(0.3112781)  # H(3/4, 1/4) - 1/2


def test_sizes_are_summed_up() -> None:
    found = measure(np.array([[1, 1], [4, 2]]))
    assert (found.sites, found.examples, found.least, found.most, found.mean) == (2, 8, 2, 6, 4)
    assert found.deviation == 2
    assert found.classes_per_site == 2
