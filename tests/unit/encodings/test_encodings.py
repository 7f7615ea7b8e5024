"""Encodings: what they write, what they lose at most, and what they refuse (methods: transfer)."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from hansa.common.encodings import encoding_of
from hansa.common.encodings.contract import Encoding, Piece, Read
from hansa.common.encodings.float16 import Float16
from hansa.common.encodings.int8 import Int8
from hansa.common.encodings.model import encoded_spec
from hansa.common.encodings.testing import decoded, differences
from hansa.common.encodings.topk import TopK
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.values.errors import PluginFailed, Refused, Rejected, Unequipped
from hansa.common.values.settings.training import LocalPluginSpec

SHAPE = (40, 25)
TINY = np.finfo(np.float32).smallest_subnormal


def drawn(seed: int = 1, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 100


def reading(pieces: Mapping[str, np.ndarray]) -> Read:
    return lambda name, start, stop: pieces[name].reshape(-1)[start:stop]


# Half precision.


def test_float16_rounds_to_the_nearest() -> None:
    for difference in differences():
        within = np.abs(difference) <= 65504
        exact = difference.astype(np.float64)
        error = np.abs(exact - decoded(Float16(), difference))
        assert (error[within] <= np.maximum(np.abs(exact[within]) * 2.0**-11, 2.0**-25)).all()


def test_float16_keeps_what_it_can_hold_and_saturates() -> None:
    difference = np.array([0.5, -3.0, 65504.0, 65519.0, 1e30, -1e30], np.float32)
    assert decoded(Float16(), difference).tolist() == [0.5, -3.0, 65504.0, 65504.0, 65504.0, -65504.0]


# Eight bits.


def test_int8_is_wrong_by_half_a_scale_at_most() -> None:
    for difference in differences():
        rows = difference.reshape(difference.shape[0] if difference.ndim > 1 else 1, -1).astype(np.float64)
        pieces = Int8().encode(difference)
        scales = pieces["scale"].astype(np.float64)[:, None]
        error = np.abs(rows - decoded(Int8(), difference).reshape(rows.shape))
        assert (error <= scales / 2).all()
        peaks = np.abs(rows).max(axis=1)
        assert (scales[:, 0] <= peaks / 127 * (1 + 2.0**-23) + TINY).all(), "no scale is larger than needed"
        assert np.abs(pieces["int8"].astype(int)).max() <= 127


def test_every_row_has_a_scale_of_its_own() -> None:
    difference = np.array([[1.0, -0.25], [5e-7, 2e-6], [0.0, 0.0]], np.float32)
    pieces = Int8().encode(difference)
    assert pieces["int8"].tolist() == [[127, -32], [32, 127], [0, 0]]
    assert pieces["scale"].tolist() == pytest.approx([1 / 127, 2e-6 / 127, 0.0])
    assert Int8().encode(difference.reshape(-1))["int8"].tolist() == [127, -32, 0, 0, 0, 0]


@pytest.mark.parametrize("scale", [math.nan, math.inf, -1e-3])
def test_int8_refuses_scales_that_nobody_writes(scale: float) -> None:
    pieces = dict(Int8().encode(drawn()))
    pieces["scale"] = pieces["scale"].copy()
    pieces["scale"][7] = scale
    with pytest.raises(Rejected, match="a scale is negative or not finite"):
        Int8().require(SHAPE, reading(pieces))


# The largest differences.


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.33, 0.49])
@pytest.mark.parametrize("seed", range(3))
def test_topk_keeps_exactly_the_k_largest(share: float, seed: int) -> None:
    difference = drawn(seed)
    kept = math.ceil(share * difference.size)
    pieces = TopK(share=share).encode(difference)
    order = sorted(range(difference.size), key=lambda i: (-abs(float(difference.flat[i])), i))[:kept]
    assert pieces["indices"].tolist() == sorted(order)
    assert pieces["values"].tolist() == difference.reshape(-1)[sorted(order)].tolist()
    assert np.count_nonzero(decoded(TopK(share=share), difference)) == kept


def test_of_equal_magnitudes_those_that_come_first_are_kept() -> None:
    difference = np.array([1, -2, 2, -1, 2, 1, -1, 1, 1, -1], np.float32)
    assert TopK(share=0.2).encode(difference)["indices"].tolist() == [1, 2]
    assert TopK(share=0.4).encode(difference)["indices"].tolist() == [0, 1, 2, 4]
    assert TopK(share=0.3).encode(np.zeros(10, np.float32))["indices"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("indices", "why"),
    [
        ([1, 1, 5], "repeated or not in ascending order"),
        ([5, 4, 6], "repeated or not in ascending order"),
        ([0, 4, 10], "index 10 is out of range: there are 10 numbers"),
        ([0, 4, 2**32 - 1], "index 4294967295 is out of range"),
    ],
)
def test_topk_refuses_indices_that_nobody_writes(indices: list[int], why: str) -> None:
    pieces = {"indices": np.array(indices, np.uint32), "values": np.ones(3, np.float32)}
    with pytest.raises(Rejected, match=why):
        TopK(share=0.3).require((10,), reading(pieces))


def test_indices_are_looked_at_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.common.encodings.topk.BLOCK", 2)
    for indices, sound in (([0, 1, 2, 3], True), ([0, 3, 3, 4], False), ([0, 3, 2, 4], False)):
        pieces = {"indices": np.array(indices, np.uint32), "values": np.ones(4, np.float32)}
        if sound:
            TopK(share=0.4).require((10,), reading(pieces))
        else:
            with pytest.raises(Rejected):
                TopK(share=0.4).require((10,), reading(pieces))


# The tensors of an update.

SPEC = ModelSpec(
    (
        TensorInfo("w", "float32", (100, 50), Role.PARAM, 1),
        TensorInfo("b", "float32", (1,), Role.PARAM, 1),
        TensorInfo("half", "float16", (1000,), Role.PARAM, 0),
        TensorInfo("empty", "float32", (0, 4), Role.PARAM, 0),
        TensorInfo("norm.mean", "float32", (50,), Role.STAT, 0),
        TensorInfo("norm.count", "int64", (), Role.COUNT, 0),
        TensorInfo("tokens", "int32", (100,), Role.COUNT, 0),
    ),
    ("layer", "other"),
)


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        (Float16(), {"w@float16": 10000, "b@float16": 2, "half": 2000}),
        (Int8(), {"w@scale": 400, "w@int8": 5000, "b": 4, "half@scale": 4, "half@int8": 1000}),
        (
            TopK(share=0.01),
            {"w@indices": 200, "w@values": 200, "b": 4, "half@indices": 40, "half@values": 40},
        ),
    ],
    ids=["float16", "int8", "topk"],
)
def test_parameters_become_pieces_if_that_makes_them_smaller(
    encoding: Encoding, sent: dict[str, int]
) -> None:
    spec = encoded_spec(encoding, SPEC)
    others = {info.name: info.nbytes for info in SPEC.tensors[3:]}
    assert {info.name: info.nbytes for info in spec.tensors} == sent | others
    assert spec.layers == SPEC.layers
    assert {info.layer for info in spec.tensors if info.name.startswith("w")} == {1}
    assert all((info.role is Role.COUNT) != info.is_float for info in spec.tensors)


def test_a_tensor_that_is_called_like_a_piece_is_named() -> None:
    spec = ModelSpec((*SPEC.tensors, TensorInfo("w@scale", "int8", (3,), Role.COUNT)))
    with pytest.raises(Rejected, match="tensor w@scale must be renamed: int8 gives its name to a part of"):
        encoded_spec(Int8(), spec)


def test_an_encoding_that_fails_is_named() -> None:
    class Odd(Float16):
        def pieces(self, shape: tuple[int, ...]) -> tuple[Piece, ...]:
            raise ZeroDivisionError

    with pytest.raises(PluginFailed, match="encoding 'float16': ZeroDivisionError"):
        encoded_spec(Odd(), SPEC)


def test_a_task_asks_for_an_encoding_by_name() -> None:
    assert encoding_of(LocalPluginSpec(name="topk", args={"share": 0.2})) == TopK(share=0.2, feedback=True)
    with pytest.raises(Unequipped, match="the encoding 'zip', which is not installed here"):
        encoding_of(LocalPluginSpec(name="zip"))
    with pytest.raises(Refused, match="encoding 'topk'"):
        encoding_of(LocalPluginSpec(name="topk", args={"share": 0.7}))
