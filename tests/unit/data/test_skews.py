"""Partitions by shards, colour, imbalance and natural keys (partitioning §7, §8)."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hansa.common.data.measures import c_score
from hansa.common.data.partition import Key, Table, parse_partition, part
from hansa.common.data.partition.divide import ColorSkew, to_gray
from hansa.common.data.partition.feddaf import own_class_goal
from hansa.common.data.partition.natural import Natural
from hansa.common.values.errors import InvalidInput
from tests.unit.data.tables import QUICK, SEEDS, TEN, is_partition, matrix_of

# partitioning §7: Shards.


@QUICK
@given(st.integers(2, 20), st.integers(2, 8), st.floats(0, 1), SEEDS)
def test_the_own_class_has_exactly_its_share_in_the_goal(
    sites: int, classes: int, eta: float, seed: int
) -> None:
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
    with pytest.raises(InvalidInput, match="class 3 has 20 examples, too few for 200 shards"):
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
        part(
            parse_partition({"kind": "mcmahan", "per_site": each, "shards": sites * each + 1}),
            labels,
            sites,
            seed,
        )


# partitioning §8: Colour, imbalance, natural keys.


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
    changed = (painted[:, 0] == painted[:, 1]).all(axis=(1, 2)) & (painted[:, 0] == painted[:, 2]).all(
        axis=(1, 2)
    )
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
    with pytest.raises(
        InvalidInput, match="3 sites need more than the 2 values of hospital with 2 examples or more"
    ):
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
