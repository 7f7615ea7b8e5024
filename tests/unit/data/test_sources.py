"""Data sets by name or file, and the files that are made of them."""

from pathlib import Path

import numpy as np
import pytest

from hansa.common.data.examples import load_npz
from hansa.common.data.shards import write_shards
from hansa.common.data.sources import load_source
from hansa.common.job.spec import DataSpec
from hansa.common.values.errors import InvalidInput


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


@pytest.mark.parametrize(
    ("name", "said"), [("digit", "did you mean 'digits'"), ("/nowhere/x.npz", "no such file")]
)
def test_an_unknown_data_set_is_refused(name: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load_source(name, 1)
