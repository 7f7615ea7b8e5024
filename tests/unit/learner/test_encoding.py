"""A learner encodes its update: what is sent, what is kept for the next one, what is refused."""

import math

import ml_dtypes
import numpy as np
import pytest

from hansa.common.encodings.contract import Encoding
from hansa.common.encodings.float16 import Float16
from hansa.common.encodings.int8 import Int8
from hansa.common.encodings.topk import TopK
from hansa.common.models.frames import Layout, views
from hansa.common.models.model import DTYPES, ModelSpec, Role, TensorInfo
from hansa.common.values.errors import PluginFailed, Rejected
from hansa.learner.training.encoding import encode

SPEC = ModelSpec(
    (
        TensorInfo("w", "float32", (30, 20), Role.PARAM),
        TensorInfo("wide", "float64", (200,), Role.PARAM),
        TensorInfo("brain", "bfloat16", (300,), Role.PARAM),
        TensorInfo("norm.mean", "float32", (20,), Role.STAT),
        TensorInfo("norm.count", "int64", (), Role.COUNT),
    )
)
ENCODINGS = [Float16(), Int8(), TopK(share=0.1), TopK(share=0.01)]
Arrays = dict[str, np.ndarray]


def drawn(seed: int, scale: float = 1.0) -> Arrays:
    chance = np.random.default_rng(seed)
    return {
        info.name: np.asarray(chance.standard_normal(info.shape) * scale).astype(DTYPES[info.dtype])
        for info in SPEC.tensors
    }


def sent_by(encoding: Encoding, start: Arrays, update: Arrays, memory: Arrays) -> Arrays:
    manifest, payload = encode(encoding, SPEC, start, update, memory)
    return views(Layout(manifest.spec), payload)


def copied(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


@pytest.mark.parametrize("encoding", ENCODINGS, ids=repr)
def test_the_update_becomes_what_the_controller_decodes(encoding: Encoding) -> None:
    start, update, memory = drawn(1), drawn(2), Arrays()
    trained = copied(update)
    sent = sent_by(encoding, start, update, memory)
    for name in ("norm.mean", "norm.count"):  # as it is
        assert sent[name].tobytes() == update[name].tobytes() == trained[name].tobytes()
    assert set(memory) <= {"transfer/w", "transfer/wide", "transfer/brain"}
    for name in ("w", "wide"):
        moved = update[name].astype(np.float64) - start[name]
        whole = trained[name].astype(np.float64) - start[name]
        lost = memory[f"transfer/{name}"]
        assert lost.dtype == np.float32
        np.testing.assert_allclose(moved + lost, whole, atol=1e-6, err_msg="sent and kept are everything")


@pytest.mark.parametrize("encoding", ENCODINGS, ids=repr)
def test_the_same_update_is_sent_in_the_same_bytes(encoding: Encoding) -> None:
    memory = {"transfer/w": drawn(5)["w"] / 10}
    runs = []
    for _ in range(2):
        update, remembered = drawn(2), copied(memory)
        manifest, payload = encode(encoding, SPEC, drawn(1), update, remembered)
        runs.append((manifest, payload.tobytes(), remembered["transfer/w"].tobytes(), update["w"].tobytes()))
    assert runs[0] == runs[1]


# How far what was sent may be behind at any time: a number waits for its turn for about n/k updates.
BEHIND = [(Float16(), 2e-5), (Int8(), 5e-4), (TopK(share=0.1), 0.5), (TopK(share=0.01), 5.0)]


def sums(encoding: Encoding, memory: Arrays | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """Train and send 300 updates; return how far what was sent is behind what was trained, after each."""
    start, behind, gaps = drawn(1), np.zeros((30, 20)), []
    for number in range(300):
        update = copied(start)
        update["w"] += np.random.default_rng(number).normal(0.01, 0.01, (30, 20)).astype(np.float32)
        behind += update["w"].astype(np.float64) - start["w"]
        encode(encoding, SPEC, start, update, {} if memory is None else memory)
        behind -= update["w"].astype(np.float64) - start["w"]
        gaps.append(behind.copy())
    return behind, gaps


@pytest.mark.parametrize(("encoding", "bound"), BEHIND, ids=repr)
def test_with_feedback_the_sum_of_what_is_sent_follows_the_sum_of_what_was_trained(
    encoding: Encoding, bound: float
) -> None:
    memory = Arrays()
    behind, gaps = sums(encoding, memory)
    np.testing.assert_allclose(memory["transfer/w"], behind, atol=1e-5, err_msg="what is behind is kept")
    assert max(np.abs(gap).max() for gap in gaps) < bound
    late, early = (max(np.abs(gap).mean() for gap in part) for part in (gaps[200:], gaps[100:200]))
    assert late < 1.2 * early, "it does not grow"


def test_without_feedback_what_is_not_sent_is_lost() -> None:
    assert np.abs(sums(TopK(share=0.1), None)[0]).max() > 4 * np.abs(sums(TopK(share=0.1), {})[0]).max()


def test_what_was_lost_before_is_sent_with_the_next_update() -> None:
    start, memory = drawn(1), Arrays()
    kept = {"transfer/w": np.zeros((30, 20), np.float32)}
    kept["transfer/w"][3, 4] = 50.0
    memory |= copied(kept)
    update = copied(start)
    sent = sent_by(TopK(share=0.01), start, update, memory)
    assert 3 * 20 + 4 in sent["w@indices"].tolist()
    assert math.isclose(float(update["w"][3, 4]) - float(start["w"][3, 4]), 50.0, rel_tol=1e-6)
    assert abs(memory["transfer/w"][3, 4]) < 1e-5


def test_a_memory_of_another_shape_counts_as_none() -> None:
    memory = {"transfer/w": np.ones((2, 2), np.float32)}
    encode(Int8(), SPEC, drawn(1), drawn(2), memory)
    assert memory["transfer/w"].shape == (30, 20)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("encoding", ENCODINGS[:3], ids=repr)
def test_numbers_that_are_not_finite_are_refused(encoding: Encoding, wrong: float) -> None:
    update = drawn(2)
    update["w"][7, 7] = wrong
    with pytest.raises(Rejected, match="tensor w holds NaN or infinite values"):
        encode(encoding, SPEC, drawn(1), update, {})


def test_a_difference_that_overflows_is_refused() -> None:
    start, update = drawn(1), drawn(2)
    start["w"][0, 0], update["w"][0, 0] = -3e38, 3e38
    with pytest.raises(Rejected, match="tensor w holds NaN or infinite values"):
        encode(Int8(), SPEC, start, update, {})


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [encode(e, SPEC, drawn(1), drawn(2), {})[1].tobytes() for e in ENCODINGS]
    monkeypatch.setattr("hansa.learner.training.encoding.BLOCK", 7)
    monkeypatch.setattr("hansa.common.encodings.int8.BLOCK", 11)
    assert [encode(e, SPEC, drawn(1), drawn(2), {})[1].tobytes() for e in ENCODINGS] == whole


def test_an_encoding_that_does_not_write_what_it_says_is_named() -> None:
    class Odd(Float16):
        def encode(self, difference: np.ndarray) -> dict[str, np.ndarray]:
            return {"float16": difference.astype(np.float32)}

    with pytest.raises(PluginFailed, match="encoding 'float16': tensor w became"):
        encode(Odd(), SPEC, drawn(1), drawn(2), {})


def test_brain_floats_move_in_their_own_precision() -> None:
    start, update = drawn(1), drawn(2)
    encode(TopK(share=0.1), SPEC, start, update, {})
    assert update["brain"].dtype == ml_dtypes.bfloat16
    changed = np.flatnonzero(update["brain"] != start["brain"])
    assert 0 < len(changed) <= 30
