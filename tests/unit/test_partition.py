"""Partitions: every example at exactly one site, sizes and labels as the papers say (partitioning §1, §3)."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hansa.common.app import load_npz
from hansa.common.data.partition import Iid, NonIidL, parse_partition, part, sizes
from hansa.common.data.shards import write_shards
from hansa.common.data.sources import load_source
from hansa.common.errors import InvalidInput, InvalidJob
from hansa.common.job import DataSpec


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50), st.integers(0, 100_000))
def test_sizes_add_up_and_are_off_by_less_than_one(shares: list[float], total: int) -> None:
    q = np.array(shares)
    found = sizes(q, total, least=0)
    assert found.sum() == total
    assert (found >= 0).all()
    assert (np.abs(found - q / q.sum() * total) < 1 + 1e-6).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(0, 10_000))
def test_equal_shares_differ_by_at_most_one_and_the_first_get_more(sites: int, total: int) -> None:
    found = sizes(np.ones(sites), total).tolist()
    assert max(found) - min(found) <= 1
    assert found == sorted(found, reverse=True)


def test_the_largest_remainders_get_one_more() -> None:
    assert sizes(np.array([0.5, 0.25, 0.25]), 10).tolist() == [5, 3, 2]  # a tie goes to the lower index
    assert sizes(np.array([0.61, 0.19, 0.2]), 10).tolist() == [6, 2, 2]
    powerlaw = np.arange(1, 11) ** -1.5
    assert sizes(powerlaw, 50_000).tolist() == [25058, 8860, 4823, 3132, 2241, 1705, 1353, 1108, 928, 792]


def _is_partition(rows: list[np.ndarray], total: int) -> bool:
    return sorted(np.concatenate(rows).tolist()) == list(range(total))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 1 << 40))
def test_iid_gives_every_row_to_one_site_in_equal_parts(total: int, sites: int, seed: int) -> None:
    assume(sites <= total)
    rows = part(Iid(), np.zeros(total, np.int64), sites, seed)
    assert _is_partition(rows, total)
    assert len(rows) == sites
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert all(r.tolist() == sorted(r.tolist()) for r in rows)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.data(), st.integers(0, 1 << 40))
def test_non_iid_gives_every_site_equal_parts_of_l_classes(
    classes: int, sites: int, data: st.DataObject, seed: int
) -> None:
    count = data.draw(st.integers(1, classes))
    assume(sites * count % classes == 0)
    shares = sites * count // classes
    sizes_of = data.draw(st.lists(st.integers(shares, shares + 30), min_size=classes, max_size=classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes) * 3, sizes_of))
    rows = part(NonIidL(labels=count), labels, sites, seed)
    assert len(rows) == sites
    assert _is_partition(rows, len(labels))
    for mine in rows:
        assert len(np.unique(labels[mine])) == count
    for label in np.unique(labels):
        parts = [int((labels[mine] == label).sum()) for mine in rows]
        held = [n for n in parts if n]
        assert len(held) == shares
        assert max(held) - min(held) <= 1


@pytest.mark.parametrize("kind", [Iid(), NonIidL(labels=2)])
def test_the_same_seed_gives_the_same_partition_and_another_seed_another(kind: Iid | NonIidL) -> None:
    labels = np.arange(200) % 4
    once, again, other = (part(kind, labels, 4, seed) for seed in (1, 1, 2))
    assert [r.tolist() for r in once] == [r.tolist() for r in again]
    assert [r.tolist() for r in once] != [r.tolist() for r in other]


def test_more_sites_than_examples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="4 sites cannot share 3 examples"):
        part(Iid(), np.zeros(3, np.int64), 4, 1)


def test_more_labels_than_there_are_classes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 labels for each site, but there are only 2"):
        part(NonIidL(labels=3), np.arange(10) % 2, 2, 1)


def test_slots_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 sites × 2 labels is no multiple of 4 classes"):
        part(NonIidL(labels=2), np.arange(100) % 4, 3, 1)


def test_a_partition_is_read_from_a_job() -> None:
    assert parse_partition({}) == Iid()
    assert parse_partition({"kind": "non-iid-l", "labels": 4}) == NonIidL(labels=4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"kind": "non-iid"}, "data.partition.kind: there is no 'non-iid' (did you mean 'non-iid-l'"),
        ({"kind": ["iid"]}, "data.partition.kind: "),
        ({"kind": "non-iid-l"}, "data.partition.labels: is required"),
        ({"kind": "non-iid-l", "labels": 0}, "data.partition.labels: "),
        ({"kind": "iid", "label": 3}, "data.partition.label: unknown key"),
    ],
)
def test_a_wrong_partition_is_refused_naming_the_field(words: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_partition(words)
    assert said in str(caught.value)


# Data sets.


def test_digits_ship_with_a_test_part_of_their_own() -> None:
    data = load_source("digits", 1)
    assert len(data.train) + len(data.test) == 1797
    assert data.train.x.shape[1:] == (64,)
    assert (data.train.x.min(), data.train.x.max()) == (0.0, 1.0)
    assert set(data.train.y.tolist()) == set(range(10))


def test_shards_hold_every_row_once(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(40, 1)
    np.savez(tmp_path / "all.npz", x=x, y=np.arange(40) % 2, x_test=-x[:10] - 1, y_test=np.arange(10) % 2)
    spec = DataSpec.model_validate({"source": str(tmp_path / "all.npz"), "partition": {"kind": "iid"}})
    paths = write_shards(spec, 3, 1, tmp_path / "shards")
    assert [path.name for path in paths] == ["site-1.npz", "site-2.npz", "site-3.npz"]
    train = np.concatenate([load_npz(path, "train").x for path in paths])
    test = np.concatenate([load_npz(path, "test").x for path in paths])
    assert sorted(train.ravel().tolist()) == list(range(40))
    assert sorted(test.ravel().tolist()) == [-float(i) for i in range(10, 0, -1)]


def test_a_set_without_a_test_part_gives_a_fifth_of_its_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.arange(50.0), y=np.arange(50))
    data = load_source(str(tmp_path / "all.npz"), 1)
    assert (len(data.train), len(data.test)) == (40, 10)
    assert sorted([*data.train.y.tolist(), *data.test.y.tolist()]) == list(range(50))


@pytest.mark.parametrize(("name", "said"), [("digit", "did you mean 'digits'"), ("/nowhere/x.npz", "no such file")])
def test_an_unknown_data_set_is_refused(name: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load_source(name, 1)
