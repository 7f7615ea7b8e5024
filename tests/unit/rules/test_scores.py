"""What confusion matrices and counts of labels say in one number (metis-dvw §1, §7, §9.2, §9.3)."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hansa.controller.evaluation.scores import (
    EPSILON,
    SCORES,
    gmean,
    inverse_loss,
    macro_f1,
    macro_f1_of_labels,
    mcc,
    micro_f1,
    micro_f1_of_labels,
    weighted_f1,
    weighted_f1_of_labels,
)

SIZES = st.integers(2, 6)
MATRICES = SIZES.flatmap(lambda n: arrays(np.int64, (n, n), elements=st.integers(0, 1000))).filter(
    lambda m: m.any()
)


def _matrix(*rows: tuple[int, ...]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


@given(MATRICES)
def test_micro_f1_is_the_accuracy_exactly(confusion: np.ndarray) -> None:
    right, n = int(np.trace(confusion)), int(confusion.sum())
    assert micro_f1(confusion) == float(Fraction(right, n))


@given(MATRICES)
def test_every_score_lies_between_nothing_and_one(confusion: np.ndarray) -> None:
    for score in SCORES["classes"].values():
        assert 0 <= score(confusion) <= 1 + 1e-12


@given(st.integers(2, 6), st.integers(1, 50))
def test_a_model_that_is_always_right_scores_one(classes: int, n: int) -> None:
    confusion = np.eye(classes, dtype=np.int64) * n
    for score in SCORES["classes"].values():
        assert score(confusion) == pytest.approx(1)


def test_pooling_before_scoring_is_not_the_mean_of_scores() -> None:
    one, other = _matrix((9, 1), (0, 0)), _matrix((0, 0), (1, 1))
    assert micro_f1(one + other) == 10 / 12
    assert (micro_f1(one) + micro_f1(other)) / 2 == pytest.approx(0.7)


def test_macro_f1_skips_classes_that_do_not_occur_and_counts_those_never_found() -> None:
    confusion = _matrix((4, 0, 0), (2, 0, 0), (0, 0, 0))
    assert macro_f1(confusion) == pytest.approx((2 * 4 / 10 + 0) / 2)


def test_weighted_f1_counts_a_class_by_its_examples() -> None:
    confusion = _matrix((4, 0, 0), (2, 0, 0), (0, 0, 0))
    assert weighted_f1(confusion) == pytest.approx((4 * 8 / 10 + 2 * 0) / 6)
    # The last class never occurs, so its wrong predictions only lower the F1 of the others.
    assert weighted_f1(_matrix((3, 0, 1), (0, 2, 0), (0, 0, 0))) == pytest.approx((4 * 6 / 7 + 2 * 1) / 6)


def test_weighted_f1_is_pooled_before_it_is_scored() -> None:
    one, other = _matrix((9, 1), (0, 0)), _matrix((0, 0), (1, 1))
    assert weighted_f1(one + other) == pytest.approx((10 * 18 / 20 + 2 * 2 / 4) / 12)
    assert (weighted_f1(one) + weighted_f1(other)) / 2 == pytest.approx((18 / 19 + 2 / 3) / 2)


def test_mcc_is_the_correlation_of_two_classes_and_nothing_below_chance() -> None:
    tn, fp, fn, tp = 50, 10, 5, 35
    wanted = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert mcc(_matrix((tn, fp), (fn, tp))) == pytest.approx(wanted)
    assert mcc(_matrix((0, 9), (9, 0))) == 0
    assert mcc(_matrix((5, 0), (5, 0))) == 0  # it always says the same
    most = 25077706970970792
    assert mcc(_matrix((most, 0), (0, 0))) == 0
    assert mcc(_matrix((most, 0), (3, 0))) == 0


def test_gmean_is_that_of_the_recalls_and_nothing_if_a_class_is_never_found() -> None:
    assert gmean(_matrix((9, 1), (6, 4))) == pytest.approx((0.9 * 0.4) ** 0.5)
    assert gmean(_matrix((9, 1), (10, 0))) == 0
    assert gmean(_matrix((9, 1, 0), (6, 4, 0), (0, 0, 0))) == pytest.approx((0.9 * 0.4) ** 0.5)


LABELS = SIZES.flatmap(lambda n: arrays(np.int64, (n, 3), elements=st.integers(0, 1000)))


@given(LABELS)
def test_scores_of_labels_are_those_of_fractions(counts: np.ndarray) -> None:
    of = [Fraction(2 * tp, 2 * tp + fp + fn) for tp, fp, fn in counts.tolist() if tp + fp + fn]
    assert macro_f1_of_labels(counts) == pytest.approx(float(sum(of) / len(of)) if of else 1)
    occurring = [(tp + fn, tp, fp, fn) for tp, fp, fn in counts.tolist() if tp + fn]
    weighted = sum(Fraction(n * 2 * tp, 2 * tp + fp + fn) for n, tp, fp, fn in occurring)
    wanted = float(weighted / sum(n for n, *_ in occurring)) if occurring else float(not of)
    assert weighted_f1_of_labels(counts) == pytest.approx(wanted)
    tp, fp, fn = map(int, counts.sum(axis=0))
    assert micro_f1_of_labels(counts) == (float(Fraction(2 * tp, 2 * tp + fp + fn)) if of else 1)


def test_micro_f1_of_labels_is_not_the_accuracy_and_not_the_mean_of_sites() -> None:
    one, other = _matrix((8, 0, 0), (0, 0, 2)), _matrix((1, 3, 1), (0, 1, 1))  # of ten examples each
    assert micro_f1_of_labels(one + other) == 18 / 26  # 32 of 40 labels are right
    assert (micro_f1_of_labels(one) + micro_f1_of_labels(other)) / 2 == pytest.approx((16 / 18 + 2 / 8) / 2)


def test_labels_that_neither_occur_nor_are_predicted_count_for_nothing() -> None:
    assert macro_f1_of_labels(_matrix((4, 1, 1), (0, 0, 0), (0, 0, 5))) == pytest.approx((8 / 10 + 0) / 2)
    assert micro_f1_of_labels(_matrix((4, 1, 1), (0, 0, 0))) == 8 / 10


def test_a_model_that_rightly_predicts_nothing_scores_one() -> None:
    for score in SCORES["labels"].values():
        assert score(_matrix((0, 0, 0), (0, 0, 0))) == 1
        assert score(_matrix((0, 0, 0), (0, 1, 0))) == 0


def test_sums_over_many_labels_do_not_wrap_around() -> None:
    assert micro_f1_of_labels(np.full((16_384, 3), (1 << 53) // 3)) == 0.5
    assert weighted_f1_of_labels(np.full((16_384, 3), (1 << 53) // 3)) == 0.5


@pytest.mark.parametrize(
    ("mean", "score"), [(0.5, 1 / (0.5 + EPSILON)), (0.0, 1e6), (float("nan"), 0.0), (float("inf"), 0.0)]
)
def test_the_inverse_of_a_loss_is_always_a_number(mean: float, score: float) -> None:
    assert inverse_loss(mean) == score
