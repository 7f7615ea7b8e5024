"""Where a network is divided, by the numbers of divide-and-conquer §4."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.controller.rules.dividing.splitting import Candidate, Choice, choose_split

Found = tuple[float | None, ...]

# Of six layers, the first is four times less divergent than the second, and the others are as divergent as
# one another.
OUTLIER = (0.004, 0.02, 0.03, 0.03, 0.09, 0.1)


def _told(choice: Choice) -> tuple[int, bool]:
    return choice.split, choice.clear


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((1, 1, 1, 1, 1, 5, 6, 7, 8), (5, True)),
        ((3, 3, 3, 3, 3, 3, 3, 3, 3), (8, False)),
        ((8, 7, 6, 5, 1, 1, 1, 1, 1), (8, False)),
        ((1, 4), (1, True)),
        ((1, 1.9), (1, False)),
        ((0, 0, 1), (2, True)),
        ((0, 1.9e-12), (1, False)),  # less than 1e-12 counts as so much
        ((0, 2.1e-12), (1, True)),
        ((1, 1, 2, 2), (2, True)),  # a ratio that is just reached
        ((1, 1, 1.999, 1.999), (3, False)),
        ((1, 2, 3), (2, False)),  # both cost the same: the later, and it is not twice as divergent
        ((1, 3, 5), (2, False)),  # both cost the same: the later is kept, though the runner-up is as good
        (
            (50, 1, 1, 10, 10),
            (4, False),
        ),  # after layer 1 it would cost less, but there it falls; then it rises nowhere
        ((2, 1, 1, 10, 10), (3, True)),
        (OUTLIER, (4, True)),
        ((None, None), (1, False)),
        ((None, 1, 9), (2, True)),
        ((1, None, 1, 9, 9), (3, True)),
    ],
)
def test_the_split_is_where_the_divergence_rises_if_it_does(found: Found, wanted: tuple[int, bool]) -> None:
    assert _told(choose_split(found)) == wanted


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((1, 1, 1, 1, 1, 5, 6, 7, 8), (5, True)),
        ((3, 3, 3, 3, 3, 3, 3, 3, 3), (8, False)),
        ((8, 7, 6, 5, 1, 1, 1, 1, 1), (8, False)),
        ((1, 2, 4), (2, True)),  # both cost the same: the later, and nothing is said of the tie
        ((1, 9, 9, 9), (1, True)),  # one layer may stand alone
        (OUTLIER, (1, True)),
    ],
)
def test_the_rule_before_can_still_be_had_for_comparison(found: Found, wanted: tuple[int, bool]) -> None:
    assert _told(choose_split(found, scale="log")) == wanted


def test_from_four_layers_on_each_side_has_two_but_the_last_layer_alone_is_the_way_out() -> None:
    assert choose_split((1, 9, 9)).split == 1, "three layers may be divided after the first"
    four = choose_split((1, 9, 9, 9))
    assert _told(four) == (3, False), "after layer 2 the ratio is 1.8, so only the last layer is apart"
    assert four.best == Candidate(2, cost=32.0, ratio=1.8)
    assert "after layer 2 it is only 1.80 times as large, not 2 times" in four.doubt
    assert choose_split((1, 1, 1, 9, 9, 99)).split == 4, "not 5, which would cost the least"


def test_a_layer_that_says_nothing_does_not_count_as_one_of_the_two() -> None:
    assert choose_split((1, None, 9, 9, 99)).best == Candidate(3, cost=32 + 4050, ratio=10.8)
    assert choose_split((1, None, 9, 9)).split == 2, "three layers are compared, so one may stand alone"


def test_the_runner_up_is_named_with_its_cost_and_one_that_is_close_makes_the_choice_unclear() -> None:
    choice = choose_split((1, 1, 5, 9, 9))
    assert choice.best is not None
    assert choice.runner_up is not None
    assert (choice.best.split, choice.best.cost, choice.best.ratio) == pytest.approx((3, 32 / 3, 27 / 7))
    assert (choice.runner_up.split, choice.runner_up.cost, choice.runner_up.ratio) == pytest.approx(
        (2, 32 / 3, 23 / 3)
    )
    assert _told(choice) == (3, False), "the best is kept, with a warning"
    assert choice.doubt == (
        "after layer 3 it costs 10.7 and after layer 2 10.7, which is too close; "
        "layer 3 is taken, compare both with layers.split"
    )


def test_the_margin_is_met_when_it_is_just_reached() -> None:
    found = (1, 1, 1, 5, 6)
    choice = choose_split(found)
    assert choice.best is not None
    assert choice.runner_up is not None
    share = choice.best.cost / choice.runner_up.cost
    assert choose_split(found, margin=share * (1 + 1e-12)).clear
    unclear = choose_split(found, margin=share * (1 - 1e-9))
    assert _told(unclear) == (choice.split, False)


def test_without_a_runner_up_the_margin_counts_as_met() -> None:
    only = choose_split((1, 1, 2, 2))
    assert only.runner_up is None
    assert only.clear
    assert choose_split((1, 2, 9, 9), legal=[2]).clear


def test_only_splits_that_are_allowed_are_chosen() -> None:
    assert _told(choose_split((1, 1, 1, 1, 9, 9), legal=[2, 4])) == (4, True)
    assert _told(choose_split((1, 1, 1, 1, 9, 9), legal=[3, 5])) == (3, True)
    assert _told(choose_split((9, 9, 1, 1), legal=[2])) == (2, False)
    assert _told(choose_split((1, 9, 9, 9), legal=[1])) == (1, False), (
        "one layer alone is not looked at, but left over"
    )


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=12), st.floats(1e-3, 1e3))
def test_the_cost_is_that_of_two_levels_and_the_best_has_the_least(found: list[float], scale: float) -> None:
    choice = choose_split(found)
    count = len(found)
    least = 2 if count >= 4 else 1
    costs = {}
    for split in range(least, count - least + 1):
        left, right = np.array(found[:split]), np.array(found[split:])
        if right.mean() > left.mean() * (1 + 1e-9):
            costs[split] = float(((left - left.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum())
    if choice.best is None:
        assert not costs
        assert _told(choice) == (count - 1, False)
    elif costs:
        assert choice.best.cost <= min(costs.values()) * (1 + 1e-9) + 1e-9
        assert least <= choice.best.split <= count - least
    if choice.clear:
        assert choice.best is not None
        assert choice.best.ratio >= 2
        assert choice.runner_up is None or choice.best.cost <= 0.8 * choice.runner_up.cost
