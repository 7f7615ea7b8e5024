"""Divergences of layers, by the numbers of divide-and-conquer §3 and §8."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.controller.rules.dividing.divergence import PAIRS, Metric, divergences, draw_pairs


def _of(*models: list[float], pairs: list[tuple[int, int]] | None = None) -> dict[Metric, float | None]:
    rows = np.array(models, dtype=np.float64)
    every = list(itertools.permutations(range(len(models)), 2))
    return divergences([rows], every if pairs is None else pairs, len(models))


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [([3, 4], [4, 3], 0.008), ([3, 4], [6, 8], 0.0), ([3, 4], [-3, -4], 0.4)],
)
def test_eq3_of_the_papers_formula(one: list[float], other: list[float], wanted: float) -> None:
    assert _of(one, other, pairs=[(0, 1)])["eq3"] == pytest.approx(wanted, abs=1e-15)


def test_the_order_of_a_pair_matters_and_both_are_counted() -> None:
    one, other = [3.0, 4.0], [0.0, 10.0]
    assert _of(one, other, pairs=[(0, 1)])["eq3"] == pytest.approx(0.04)
    assert _of(one, other, pairs=[(1, 0)])["eq3"] == pytest.approx(0.02)
    assert _of(one, other)["eq3"] == pytest.approx(0.03)


def test_eq3_does_not_see_how_large_the_second_is_but_falls_with_the_first() -> None:
    one, other = np.array([3.0, 4.0, 1.0]), np.array([0.5, -2.0, 7.0])
    plain = _of(list(one), list(other), pairs=[(0, 1)])["eq3"]
    assert plain is not None
    assert _of(list(one), list(5 * other), pairs=[(0, 1)])["eq3"] == pytest.approx(plain)
    assert _of(list(5 * one), list(other), pairs=[(0, 1)])["eq3"] == pytest.approx(plain / 5)


def test_the_other_metrics_are_cosine_distance_and_relative_distance() -> None:
    found = _of([3.0, 4.0], [4.0, 3.0], pairs=[(0, 1)])
    assert found["cosine"] == pytest.approx(0.04)
    assert found["relative_l2"] == pytest.approx(np.sqrt(2) / 5)
    unequal = _of([3.0, 4.0], [0.0, 10.0], pairs=[(0, 1)])
    assert unequal["relative_l2"] == pytest.approx(np.sqrt(45) / 5), "of the first, as printed"


@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 1000), st.integers(1, 39))
def test_it_is_the_mean_over_ordered_pairs_however_the_layer_is_cut(
    models: int, width: int, seed: int, cut: int
) -> None:
    rows = np.random.default_rng(seed).standard_normal((models, width))
    wanted = []
    for i, j in itertools.permutations(range(models), 2):
        cosine = rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j])
        wanted.append((1 - cosine) / np.linalg.norm(rows[i]))
    pairs = list(itertools.permutations(range(models), 2))
    pieces = [rows[:, :cut], rows[:, cut:]]
    assert divergences(pieces, pairs, models)["eq3"] == pytest.approx(np.mean(wanted), abs=1e-12)


def test_a_layer_of_zeros_says_nothing() -> None:
    assert _of([0.0, 0.0], [1.0, 2.0]) == {"eq3": None, "cosine": None, "relative_l2": None}
    three = _of([0.0, 0.0], [3.0, 4.0], [4.0, 3.0])
    assert three["eq3"] == pytest.approx(0.008)


def test_of_many_models_some_pairs_are_drawn_always_the_same() -> None:
    assert len(draw_pairs(32, np.random.default_rng(1))) == 32 * 31
    drawn = draw_pairs(33, np.random.default_rng(1))
    assert len(set(drawn)) == PAIRS
    assert all(i != j and 0 <= i < 33 and 0 <= j < 33 for i, j in drawn)
    assert drawn == draw_pairs(33, np.random.default_rng(1))
    assert drawn != draw_pairs(33, np.random.default_rng(2))
    rows = np.random.default_rng(0).standard_normal((33, 50))
    norms = np.linalg.norm(rows, axis=1)
    wanted = [(1 - rows[i] @ rows[j] / norms[i] / norms[j]) / norms[i] for i, j in drawn]
    assert divergences([rows[:, :20], rows[:, 20:]], drawn, 33)["eq3"] == pytest.approx(
        np.mean(wanted), abs=1e-12
    )
