"""Files of arrays: whatever is written is read again, without copies, and nothing changes the file."""

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hansa.common.models.model import DTYPES
from hansa.common.models.tensor_files import read_tensors, write_tensors
from hansa.common.values.errors import InvalidInput

ODD: dict[str, np.ndarray] = {
    "number": np.array(3.0),
    "nothing": np.empty((0, 3), np.float32),
    "every/second": np.arange(10, dtype=np.int16)[::2],
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "big-endian": np.arange(3, dtype=">i4"),
    "bits": np.array([True, False, True]),
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
}


def test_arrays_and_texts_of_every_kind_come_back(tmp_path: Path) -> None:
    arrays = ODD | {name: np.arange(5).astype(kind) for name, kind in DTYPES.items()}
    path = tmp_path / "arrays.safetensors"
    write_tensors(path, arrays, {"note": "Größe"}, 0o600)
    back, texts = read_tensors(path)
    assert texts == {"note": "Größe"}
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (back[name].dtype.name, back[name].shape) == (array.dtype.name, array.shape)
        assert np.array_equal(back[name], array), name
        assert back[name].flags.aligned, name
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    floats = {name: array for name, array in load_file(path).items() if name != "half"}
    assert np.array_equal(floats["turned"], ODD["turned"])  # others can read it, too


def test_arrays_may_be_changed_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "arrays.safetensors"
    write_tensors(path, {"a": np.zeros(4)}, {}, 0o600)
    arrays, _ = read_tensors(path)
    arrays["a"] += 1
    path.unlink()  # what was read does not depend on the name
    assert arrays["a"].tolist() == [1, 1, 1, 1]
    write_tensors(path, {"a": np.zeros(4)}, {}, 0o600)
    again, _ = read_tensors(path)
    assert again["a"].tolist() == [0, 0, 0, 0]


def test_a_large_array_is_neither_copied_when_it_is_written_nor_when_it_is_read(tmp_path: Path) -> None:
    large = np.ones(4_000_000, np.float32)
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "large", {"large": large}, {}, 0o600)
        back, _ = read_tensors(tmp_path / "large")
        assert tracemalloc.get_traced_memory()[1] < large.nbytes // 10
    finally:
        tracemalloc.stop()
    assert back["large"].sum() == 4_000_000


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "arrays.safetensors"
    write_tensors(path, {"a": np.zeros(4)}, {}, 0o600)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", b"not at all"):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInput, match="not a safetensors file"):
            read_tensors(path)
    save_file({"z": np.zeros(2, np.complex64)}, path)
    with pytest.raises(InvalidInput, match="z has type C64, which cannot be used"):
        read_tensors(path)
