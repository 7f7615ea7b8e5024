"""The validation part: stratified, deterministic, never trained on (metis-dvw §1.1, §9.9)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.data.examples import Examples
from hansa.common.data.holdout import parts, split
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.settings.training import Standard, ValidationSpec
from hansa.common.values.tasks import Init, Task

SITE = SiteName("a")
LABELS = st.lists(st.integers(0, 5), max_size=200).map(lambda rows: np.array(rows, dtype=np.int64))
FRACTIONS = st.floats(0.001, 0.999)


@settings(max_examples=200, deadline=None)
@given(LABELS, FRACTIONS, st.booleans(), st.integers(0, (1 << 63) - 1))
def test_the_parts_are_disjoint_sorted_and_together_all_rows(
    labels: np.ndarray, fraction: float, stratified: bool, seed: int
) -> None:
    train, held = split(labels, ValidationSpec(fraction=fraction, stratified=stratified), seed, SITE)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(labels)))
    assert train.tolist() == sorted(train.tolist())
    assert held.tolist() == sorted(held.tolist())


@settings(max_examples=300, deadline=None)
@given(LABELS, FRACTIONS)
def test_every_class_gives_its_share_but_at_least_one_of_two_and_none_of_one(
    labels: np.ndarray, fraction: float
) -> None:
    _, held = split(labels, ValidationSpec(fraction=fraction), 3, SITE)
    for label in np.unique(labels):
        n = int((labels == label).sum())
        kept = int((labels[held] == label).sum())
        if n == 1:
            assert kept == 0
        elif fraction * n < 1:
            assert kept == 1
        else:
            assert abs(kept - fraction * n) < 1
            assert 1 <= kept < n


@pytest.mark.parametrize(
    ("n", "fraction", "kept"),
    [(1, 0.5, 0), (2, 0.05, 1), (2, 0.9, 1), (10, 0.05, 1), (33, 0.05, 2), (100, 0.05, 5)],
)
def test_the_paper_s_counts(n: int, fraction: float, kept: int) -> None:
    assert len(split(np.zeros(n, np.int64), ValidationSpec(fraction=fraction), 1, SITE)[1]) == kept


def test_the_split_is_a_function_of_seed_and_site() -> None:
    labels = np.arange(400) % 4
    spec = ValidationSpec(fraction=0.25)
    once = split(labels, spec, 1990, SITE)
    again = split(labels.copy(), spec, 1990, SITE)
    assert [part.tolist() for part in once] == [part.tolist() for part in again]
    assert once[1].tolist() != split(labels, spec, 1991, SITE)[1].tolist()
    assert once[1].tolist() != split(labels, spec, 1990, SiteName("b"))[1].tolist()
    assert once[1].tolist() != split(labels, spec, 1990, SITE, "test")[1].tolist()


def test_both_parts_are_standardised_by_the_training_part() -> None:
    """Standardised by its own rows, a validation part would have other units than the training data."""
    rng = np.random.default_rng(0)
    held = Examples(rng.normal(5, 3, (40, 2)).astype(np.float32), np.arange(40) % 2)
    task = Task(
        id=TaskId("j1-1"),
        job=JobId("j1"),
        site=SITE,
        round=1,
        app="app.py:app",
        seed=3,
        validation=ValidationSpec(fraction=0.2),
        standard=Standard(kind="local", columns=2),
        work=Init(),
    )
    rows, others = split(held.y, task.validation, 3, SITE)
    mean, deviation = held.x[rows].mean(axis=0), held.x[rows].std(axis=0)
    training, validation = parts(held, task)
    np.testing.assert_allclose(training.x, (held.x[rows] - mean) / deviation, atol=1e-4)
    np.testing.assert_allclose(validation.x, (held.x[others] - mean) / deviation, atol=1e-4)
    assert validation.y.tolist() == held.y[others].tolist()


def test_a_fraction_of_zero_holds_nothing_back() -> None:
    train, held = split(np.arange(7) % 2, ValidationSpec(fraction=0), 1, SITE)
    assert train.tolist() == list(range(7))
    assert held.size == 0


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 50), np.zeros((50, 2), np.int64)])
def test_targets_that_are_not_classes_are_split_as_one_group(labels: np.ndarray) -> None:
    train, held = split(labels, ValidationSpec(fraction=0.1), 1, SITE)
    assert (len(train), len(held)) == (45, 5)


@pytest.mark.parametrize(("rows", "kept"), [(0, 0), (1, 0), (2, 1), (10, 1), (33, 2), (100, 5)])
def test_rows_with_several_labels_are_held_out_at_random_whatever_their_labels(rows: int, kept: int) -> None:
    labels = np.random.default_rng(rows).integers(0, 2, (rows, 3))
    for y in (labels, labels.astype(bool), labels[:, :1], np.zeros_like(labels)):
        train, held = split(y, ValidationSpec(fraction=0.05), 1, SITE)
        assert (len(train), len(held)) == (rows - kept, kept)
        assert (
            held.tolist()
            == split(labels, ValidationSpec(fraction=0.05, stratified=False), 1, SITE)[1].tolist()
        )


@pytest.mark.parametrize("stratified", [True, False])
def test_no_rows_and_one_row_are_all_for_training(stratified: bool) -> None:
    for rows in (0, 1):
        train, held = split(
            np.zeros(rows, np.int64), ValidationSpec(fraction=0.5, stratified=stratified), 1, SITE
        )
        assert (len(train), len(held)) == (rows, 0)
        assert train.dtype.kind == held.dtype.kind == "i"
