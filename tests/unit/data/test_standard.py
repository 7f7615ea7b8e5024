"""Standardisation: the sites' sums give what all data in one place would give (partitioning §10)."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hansa.common.data import standard as module
from hansa.common.data.examples import Examples
from hansa.common.data.standard import merged, pooled, profile, standardised
from hansa.common.values.errors import InvalidData
from hansa.common.values.results import Profile
from hansa.common.values.settings.training import Standard


def table(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Columns of very different size, some of them far from zero, one of them constant."""
    x = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 4, columns) + 10.0 ** rng.integers(
        0, 4, columns
    )
    x[:, 0] = 0.1
    found: np.ndarray = x
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 6), st.integers(0, 1 << 32))
def test_the_global_standard_is_that_of_all_rows_in_one_place(
    sites: list[int], columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [table(rng, rows, columns) for rows in sites]
    every = np.concatenate(parts)
    assume(len(every) > 0)
    found = pooled([profile(part, None) for part in parts])
    assert np.array(found.mean) == pytest.approx(every.mean(axis=0), rel=1e-10, abs=1e-10)
    expected = every.std(axis=0)
    still = expected < 1e-9 * np.abs(every).max()
    assert np.array(found.deviation)[~still] == pytest.approx(expected[~still], rel=1e-10)
    assert found.deviation[0] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 1 << 32))
def test_locally_standardised_data_have_mean_0_and_deviation_1(rows: int, columns: int, seed: int) -> None:
    x = table(np.random.default_rng(seed), rows, columns)
    found = standardised(Examples(x, np.zeros(rows)), Standard(kind="local")).x.astype(np.float64)
    assert found.dtype == np.float64
    assert found.mean(axis=0) == pytest.approx(np.zeros(columns), abs=1e-5)
    for column, deviation in enumerate(found.std(axis=0)):
        assert deviation == pytest.approx(0 if column == 0 or rows == 1 else 1, abs=1e-5)


def test_with_one_site_local_and_global_are_the_same() -> None:
    x = table(np.random.default_rng(1), 50, 4)
    held = Examples(x, np.zeros(50))
    one, other = standardised(held, Standard(kind="local")), standardised(held, pooled([profile(x, None)]))
    assert (one.x == other.x).all()


def test_a_column_that_never_changes_becomes_0_however_many_rows_there_are() -> None:
    parts = [np.tile([0.1, 1.0], (rows, 1)) for rows in (3, 1000, 70_000)]
    for part in parts:
        part[::2, 1] = -1
    found = pooled([profile(part, None) for part in parts])
    assert (found.mean[0], found.deviation[0]) == (0.1, 1)
    for part in parts:
        held = Examples(part, np.zeros(len(part)))
        for standard in (Standard(kind="local"), found):
            assert not standardised(held, standard).x[:, 0].any()


def test_only_the_first_columns_are_touched() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    held = standardised(Examples(x, np.zeros(4)), pooled([profile(x, 2)]))
    assert held.x[:, 2].tolist() == [2, 5, 8, 11]
    assert held.x[:, :2].mean(axis=0) == pytest.approx([0, 0], abs=1e-6)
    assert x[0, 0] == 0, "the site's own data stay as they are"


def test_test_rows_are_standardised_by_the_training_rows() -> None:
    train, test = np.array([[0.0], [2.0]]), np.array([[4.0]])
    own = Examples(train, np.zeros(2))
    assert standardised(Examples(test, np.zeros(1)), Standard(kind="local"), own).x.tolist() == [[3.0]]


def test_pictures_are_columns_too_and_keep_their_shape() -> None:
    x = np.random.default_rng(1).integers(0, 256, (20, 1, 3, 3)).astype(np.uint8)
    found = standardised(Examples(x, np.zeros(20)), Standard(kind="local")).x
    assert found.shape == x.shape
    assert found.dtype == np.float32
    assert found.mean(axis=0) == pytest.approx(np.zeros((1, 3, 3)), abs=1e-5)


def test_large_tables_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = table(np.random.default_rng(1), 100, 5)
    whole = profile(x, None), standardised(Examples(x, np.zeros(100)), Standard(kind="local")).x
    monkeypatch.setattr(module, "CHUNK", 17)
    assert np.array(profile(x, None).m2) == pytest.approx(np.array(whole[0].m2), rel=1e-12)
    assert standardised(Examples(x, np.zeros(100)), Standard(kind="local")).x == pytest.approx(whole[1])


def test_a_site_without_rows_adds_nothing() -> None:
    told = profile(np.array([[1.0], [3.0]]), None)
    nothing = profile(np.zeros((0, 1)), None)
    assert merged(told, nothing) == merged(nothing, told) == told
    assert told == Profile(n=2, mean=(2.0,), m2=(2.0,))


def test_columns_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidData, match="5 columns are to be standardised, but the data have 2"):
        profile(np.zeros((3, 2)), 5)
    with pytest.raises(InvalidData, match="the data have 20000 columns, of which at most 16384"):
        profile(np.zeros((1, 20_000)), None)
