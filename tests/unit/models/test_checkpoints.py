"""Checkpoints: safetensors files that carry roles and layers, and files from elsewhere that do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.numpy import save_file
from safetensors.torch import load_file as torch_load
from safetensors.torch import save_file as torch_save

from hansa.common.models.checkpoints import load_checkpoint, save_checkpoint
from hansa.common.models.frames import Layout, pack, seal, views
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.values.errors import InvalidInput
from tests.unit.samples import specs, values

SPEC = ModelSpec(
    (
        TensorInfo("z.weight", "float32", (3, 4), Role.PARAM, 0),
        TensorInfo("a.half", "bfloat16", (5,), Role.PARAM, 1),
        TensorInfo("a.mean", "float64", (2,), Role.STAT, 1, 1e-5),
        TensorInfo("count", "int64", (), Role.COUNT, 1),
        TensorInfo("none", "float32", (0, 3), Role.PARAM, 1),
        TensorInfo("flags", "bool", (3,), Role.COUNT, 0),
    ),
    ("z", "a"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def test_a_checkpoint_keeps_values_order_roles_layers_and_norms(tmp_path: Path) -> None:
    payload = pack(SPEC, values(SPEC))
    save_checkpoint(tmp_path / "m.safetensors", seal(SPEC, payload), payload)
    manifest, back = load_checkpoint(tmp_path / "m.safetensors")
    assert manifest == seal(SPEC, payload)
    assert back.tobytes() == payload.tobytes()


@settings(max_examples=25, deadline=None)
@given(specs(most=4))
def test_any_model_makes_the_round_trip(folder: Path, spec: ModelSpec) -> None:
    payload = pack(spec, values(spec))
    save_checkpoint(folder / "m.safetensors", seal(spec, payload), payload)
    manifest, back = load_checkpoint(folder / "m.safetensors")
    assert manifest == seal(spec, payload)
    assert back.tobytes() == payload.tobytes()


def test_torch_reads_a_checkpoint(tmp_path: Path) -> None:
    arrays = values(SPEC)
    payload = pack(SPEC, arrays)
    save_checkpoint(tmp_path / "m.safetensors", seal(SPEC, payload), payload)
    read = torch_load(tmp_path / "m.safetensors")
    assert read["a.half"].dtype == torch.bfloat16
    assert read["a.half"].float().tolist() == arrays["a.half"].astype(np.float32).tolist()
    assert read["z.weight"].tolist() == arrays["z.weight"].tolist()


def test_a_file_from_torch_without_notes_gets_roles_by_type(tmp_path: Path) -> None:
    state = {"w": torch.randn(2, 3), "h": torch.randn(4).bfloat16(), "n": torch.tensor(7)}
    torch_save(state, tmp_path / "plain.safetensors")
    manifest, payload = load_checkpoint(tmp_path / "plain.safetensors")
    roles = {info.name: info.role for info in manifest.spec.tensors}
    assert roles == {"w": Role.PARAM, "h": Role.PARAM, "n": Role.COUNT}
    assert manifest.spec.layers == ()
    held = views(Layout(manifest.spec), payload)
    assert held["w"].tolist() == state["w"].tolist()
    assert held["h"].astype(np.float32).tolist() == state["h"].float().tolist()
    assert held["n"] == 7


def test_a_checkpoint_replaces_the_old_one_and_leaves_no_drafts(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for seed in (1, 2):
        payload = pack(SPEC, values(SPEC, seed))
        save_checkpoint(path, seal(SPEC, payload), payload)
    assert load_checkpoint(path)[0] == seal(SPEC, payload)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    payload = pack(SPEC, values(SPEC))
    with pytest.raises(InvalidInput, match="cannot be written"):
        save_checkpoint(tmp_path / "missing" / "m.safetensors", seal(SPEC, payload), payload)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        load_checkpoint(tmp_path / "nothing.safetensors")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_checkpoint(tmp_path)


def _file(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


W = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"not a safetensors file at all",
        (1 << 62).to_bytes(8, "little") + b"{}",
        _file({"w": W}, b"\0\0"),
        _file({"w": W | {"data_offsets": [0, 400]}}, b"\0" * 4),
        _file({"w": W | {"dtype": "F8_E4M3", "data_offsets": [0, 1]}}, b"\0"),
        _file({"w": W, "__metadata__": {"hansa": "no json"}}, b"\0" * 4),
        _file({"w": W, "__metadata__": {"hansa": "[]"}}, b"\0" * 4),
        _file(
            {"w": W, "__metadata__": {"hansa": '{"layers": [], "tensors": {"w": ["KING", 0]}}'}}, b"\0" * 4
        ),
        _file({"w": W, "__metadata__": {"hansa": '{"layers": [], "tensors": {"w": 5}}'}}, b"\0" * 4),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"bad\.safetensors: "):
        load_checkpoint(path)


def test_tensors_the_notes_do_not_name_come_last_by_name(tmp_path: Path) -> None:
    header = {name: W | {"data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(["c", "b", "a"])}
    notes = json.dumps({"layers": [], "tensors": {"b": ["STAT", 0]}})
    path = tmp_path / "some.safetensors"
    path.write_bytes(_file(header | {"__metadata__": {"hansa": notes}}, b"\0" * 12))
    manifest, _ = load_checkpoint(path)
    assert manifest.spec.names == ("b", "a", "c")
    assert manifest.spec.tensors[0].role is Role.STAT


@pytest.mark.parametrize("name", ["../../w", "\x1b]0;owned\x07", "w\nERROR forged", "a\u202eb"])
def test_a_file_with_a_name_that_is_more_than_a_name_is_refused(tmp_path: Path, name: str) -> None:
    save_file({name: np.zeros(2, np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(InvalidInput, match=r"m\.safetensors: .* cannot be the name of a tensor or layer"):
        load_checkpoint(tmp_path / "m.safetensors")
    layers = {"hansa": json.dumps({"layers": [name], "tensors": {"w": ["PARAM", 0]}})}
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "n.safetensors", layers)
    with pytest.raises(InvalidInput, match=r"n\.safetensors: .* cannot be the name of a tensor or layer"):
        load_checkpoint(tmp_path / "n.safetensors")
