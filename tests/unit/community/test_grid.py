"""The grid: sums that do not depend on order and can be undone."""

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.controller.community.grid import Grid
from tests.unit.samples import grid_of

Term = tuple[float, np.ndarray]

WEIGHTS = st.floats(1e-3, 1e6)
SCALES = st.integers(-1070, 1020)


@st.composite
def terms(draw: st.DrawFn, most: int = 7) -> list[Term]:
    """Draw weights and small arrays, each array of its own magnitude."""
    found: list[Term] = []
    for _ in range(draw(st.integers(1, most))):
        scale, seed = draw(SCALES), draw(st.integers(0, 1000))
        found.append((draw(WEIGHTS), np.ldexp(np.random.default_rng(seed).uniform(-1, 1, 9), scale)))
    return found


def _grid(given_: list[Term]) -> Grid:
    return grid_of([p for p, _ in given_], [float(np.abs(w).max()) for _, w in given_])


def _total(grid: Grid, given_: list[Term]) -> np.ndarray:
    total = np.zeros(9)
    for weight, numbers in given_:
        grid.add(total, [(numbers, weight)])
    return total


@settings(max_examples=200, deadline=None)
@given(terms(), st.randoms(use_true_random=False))
def test_the_sum_does_not_depend_on_the_order(given_: list[Term], random: Random) -> None:
    shuffled = list(given_)
    random.shuffle(shuffled)
    assert _grid(shuffled) == _grid(given_)
    assert _total(_grid(shuffled), shuffled).tobytes() == _total(_grid(given_), given_).tobytes()


@settings(max_examples=200, deadline=None)
@given(terms(), st.integers(0, 7), st.booleans())
def test_terms_added_together_give_the_sum_of_terms_added_one_by_one(
    given_: list[Term], cut: int, fresh: bool
) -> None:
    grid = _grid(given_)
    total = np.full(9, 7e7) if fresh else np.zeros(9)
    for i, part in enumerate((given_[:cut], given_[cut:])):
        if part:
            grid.add(
                total, [(numbers, weight) for weight, numbers in part], fresh and (i == 0 or not given_[:cut])
            )
    assert total.tobytes() == _total(grid, given_).tobytes()


def test_halves_of_a_step_are_rounded_alike_wherever_a_term_stands() -> None:
    grid = grid_of([1.0] * 4, [1.0] * 4)
    halves = np.ldexp(np.arange(-7, 8) + 0.5, -grid.bits)
    alone = np.zeros(15)
    grid.add(alone, [(halves, 1.0)])
    for together in (2, 3, 4):
        total = np.zeros(15)
        grid.add(total, [(halves, 1.0)] * together)
        assert np.array_equal(total, together * alone)


@settings(max_examples=200, deadline=None)
@given(terms(), st.integers(0, 6))
def test_removing_a_term_restores_the_sum_bit_for_bit(given_: list[Term], which: int) -> None:
    grid = _grid(given_)
    gone = which % len(given_)
    total = _total(grid, given_)
    grid.add(total, [(-given_[gone][1], given_[gone][0])])
    assert np.array_equal(total, _total(grid, [term for i, term in enumerate(given_) if i != gone]))


@settings(max_examples=200, deadline=None)
@given(terms())
def test_every_term_is_off_by_at_most_half_a_step(given_: list[Term]) -> None:
    grid = _grid(given_)
    step = Fraction(2) ** -grid.bits
    for weight, numbers in given_:
        total = np.zeros(9)
        grid.add(total, [(numbers, weight)])
        for rounded, number in zip(total.tolist(), numbers.tolist(), strict=True):
            exact = Fraction(weight) * Fraction(number) / Fraction(2) ** grid.shift
            # The product is rounded to float64 first; it is below 2^(47-bits), so that costs far less than a
            # step.
            assert abs(Fraction(rounded) - exact) <= step * Fraction(65, 128)
            assert (Fraction(rounded) / step).denominator == 1


@settings(max_examples=200, deadline=None)
@given(terms(), st.integers(-40, 40))
def test_scaling_the_weights_by_a_power_of_two_scales_the_grid(given_: list[Term], j: int) -> None:
    grid = _grid(given_)
    scaled = _grid([(math.ldexp(p, j), w) for p, w in given_])
    assert scaled.shift - scaled.bits == grid.shift - grid.bits + j


def test_the_grid_holds_thousands_of_equal_terms_exactly() -> None:
    for count in (16, 256, 4096, 5000, 40_000):
        grid = grid_of([1.0] * count, [1.0] * count)
        total = np.zeros(3)
        numbers = np.array([1.0, -1.0, 1 / 3])
        one = np.zeros(3)
        grid.add(one, [(numbers, 1.0)])
        for _ in range(count):
            grid.add(total, [(numbers, 1.0)])
        assert [Fraction(v) for v in total.tolist()] == [count * Fraction(v) for v in one.tolist()]


@pytest.mark.parametrize(("count", "kept"), [(2, 38), (16, 38), (17, 34), (256, 34), (257, 30), (4096, 30)])
def test_the_fewer_the_terms_the_more_bits_are_kept_below_the_tallest(count: int, kept: int) -> None:
    for scale in (-200, -3, 0, 5, 200):
        grid = grid_of([3.0] * count, [math.ldexp(0.75, scale)] * count)
        tallest = math.ldexp(0.75, scale) * grid.scaled(3.0)
        assert math.ldexp(1.0, -grid.bits) <= tallest * 2**-kept


def test_a_set_that_grows_a_little_keeps_its_grid() -> None:
    grids = [Grid.over(1, count) for count in range(1, 4097)]
    assert [i + 2 for i in range(4095) if grids[i] != grids[i + 1]] == [17, 257]


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1.0, 1e300])
@pytest.mark.parametrize("peak", [0.0, 5e-324, 1e-30])
def test_zeros_and_tiny_terms_are_raised_to_where_float64_has_all_its_digits(
    weight: float, peak: float
) -> None:
    grid = grid_of([weight, weight], [peak, peak])
    assert math.ldexp(1.0, -grid.bits) > 0
    assert 0 < grid.scaled(weight) < math.inf
    total = np.zeros(9)
    grid.add(total, [(np.full(9, peak), weight)])
    wanted = Fraction(weight) * Fraction(peak) / Fraction(2) ** grid.shift
    assert all(abs(Fraction(found) - wanted) <= wanted / 2**38 for found in total.tolist())
