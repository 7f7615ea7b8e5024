"""Frames: layout, round trips, checks and deltas."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from itertools import pairwise

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.common.models.frames import (
    FRAME,
    FrameCheck,
    Layout,
    Sealer,
    allocate,
    as_bytes,
    cut,
    numbers,
    pack,
    peaks,
    peaks_of,
    seal,
    select,
    views,
)
from hansa.common.models.model import ALIGN, DTYPES, FLOATS, Manifest, ModelSpec
from hansa.common.values.errors import Rejected
from tests.unit.samples import spec_of, specs, values

LONG = FRAME // 8 * 2 + 5  # float64 numbers over three frames
MIXED = {
    "empty-first": ("float32", (0,)),
    "scalar": ("float64", ()),
    "long": ("float64", (LONG,)),
    "empty-middle": ("int8", (4, 0)),
    "flag": ("bool", (3,)),
    "half": ("bfloat16", (2, 3)),
    "empty-last": ("bfloat16", (0, 2)),
}


def _fed(manifest: Manifest, frames: Iterator[memoryview]) -> FrameCheck:
    check = FrameCheck(manifest)
    for frame in frames:
        check.feed(frame)
    return check


@settings(max_examples=60, deadline=None)
@given(specs())
def test_tensors_begin_at_multiples_of_64_and_follow_each_other_without_needless_gaps(
    spec: ModelSpec,
) -> None:
    layout = Layout(spec)
    for info, (begin, end) in zip(spec.tensors, pairwise(layout.offsets), strict=True):
        assert begin % ALIGN == 0
        assert 0 <= end - begin - info.nbytes < ALIGN
    assert layout.size == layout.offsets[-1]
    assert sum(layout.frame_size(i) for i in range(layout.frames)) == layout.size


@settings(max_examples=60, deadline=None)
@given(specs())
def test_spans_cover_every_byte_of_every_tensor_once_in_order_and_split_no_number(spec: ModelSpec) -> None:
    layout = Layout(spec)
    covered = [0] * len(spec.tensors)
    for index in range(layout.frames):
        end = 0
        for span in layout.spans(index):
            assert span.start == covered[span.tensor]
            assert span.at >= end
            assert index * FRAME + span.at == layout.offsets[span.tensor] + span.start
            assert span.size % DTYPES[spec.tensors[span.tensor].dtype].itemsize == 0
            covered[span.tensor], end = span.stop, span.at + span.size
        assert end <= layout.frame_size(index)
    assert covered == [info.nbytes for info in spec.tensors]


@settings(max_examples=40, deadline=None)
@given(specs(), st.integers(0, 9))
def test_what_is_packed_cut_and_joined_comes_back_bit_for_bit(spec: ModelSpec, seed: int) -> None:
    arrays = values(spec, seed)
    payload = pack(spec, arrays)
    frames = list(cut(payload))
    assert [frame.nbytes for frame in frames] == [
        Layout(spec).frame_size(i) for i in range(Layout(spec).frames)
    ]
    joined = np.frombuffer(b"".join(frames), dtype=np.uint8)
    for name, array in views(Layout(spec), joined).items():
        assert array.dtype == arrays[name].dtype
        assert array.shape == arrays[name].shape
        assert array.tobytes() == arrays[name].tobytes()


@settings(max_examples=40, deadline=None)
@given(specs())
def test_a_seal_holds_the_digest_of_each_tensors_bytes_and_passes_its_own_check(spec: ModelSpec) -> None:
    arrays = values(spec)
    payload = pack(spec, arrays)
    manifest = seal(spec, payload)
    assert manifest.digests == tuple(blake3(arrays[name].tobytes()).digest() for name in spec.names)
    assert _fed(manifest, cut(payload)).complete


@settings(max_examples=30, deadline=None)
@given(specs())
def test_peaks_are_the_largest_magnitudes_of_float_tensors_and_zero_elsewhere(spec: ModelSpec) -> None:
    arrays = values(spec)
    sealer = Sealer(spec)
    for frame in cut(pack(spec, arrays)):
        sealer.feed(frame)
    expected = [
        float(np.abs(arrays[info.name].astype(np.float64)).max()) if info.is_float and info.elements else 0.0
        for info in spec.tensors
    ]
    assert sealer.peaks == peaks_of(spec, pack(spec, arrays)) == expected


ODD = [float("nan"), float("inf"), float("-inf"), -0.0, 1e-40, -6e4, 6e4, -1.0]


@settings(max_examples=60, deadline=None)
@given(specs(), st.data())
def test_peaks_are_what_one_finds_tensor_by_tensor_wherever_a_number_is_odd(
    spec: ModelSpec, data: st.DataObject
) -> None:
    arrays, kinds = values(spec), {info.name: info for info in spec.tensors}
    floats = [info.name for info in spec.tensors if info.is_float and info.elements]
    for name in data.draw(st.lists(st.sampled_from(floats), max_size=6) if floats else st.just([])):
        at = data.draw(
            st.sampled_from([0, kinds[name].elements - 1]) | st.integers(0, kinds[name].elements - 1)
        )
        arrays[name].reshape(-1)[at] = data.draw(st.sampled_from(ODD))

    def naive(name: str) -> float:
        if name not in floats:
            return 0.0
        tops = np.abs(arrays[name].astype(np.float64))
        return float(tops.max()) if np.isfinite(tops).all() else float("inf")

    payload = pack(spec, arrays)
    sealer = Sealer(spec)
    for frame in cut(payload):
        sealer.feed(frame)
    assert sealer.peaks == peaks_of(spec, payload) == [naive(name) for name in spec.names]
    check, odd = FrameCheck(seal(spec, payload)), [name for name in spec.names if naive(name) == float("inf")]
    for frame in cut(payload):
        with pytest.raises(Rejected, match="only" if not odd else "only|holds NaN"):
            check.finish()
        with suppress(Rejected):
            check.feed(frame)
    with pytest.raises(Rejected, match=f"tensor {odd[0]} holds NaN") if odd else nullcontext():
        check.finish()


def test_peaks_that_other_threads_look_for_are_the_same() -> None:
    spec = spec_of({"a": ("float32", (400_000,)), "small": ("float32", (3,)), "b": ("float64", (200_000,))})
    arrays = {name: np.asarray(array) / 2 for name, array in values(spec).items()}
    arrays = {
        name: array.astype(DTYPES[spec.tensors[spec.index[name]].dtype]) for name, array in arrays.items()
    }
    arrays["a"][399_999], arrays["b"][0] = -1e6, 2e6
    found = []
    with ThreadPoolExecutor(2) as pool:
        for sealer in (Sealer(spec), Sealer(spec, pool=pool)):
            for frame in cut(pack(spec, arrays)):
                sealer.feed(frame)
            found.append((sealer.peaks, sealer.manifest()))
    assert found[0] == found[1]
    assert (found[1][0][0], found[1][0][2]) == (1e6, 2e6)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (3, 4)])
def test_every_dtype_makes_the_round_trip(dtype: str, shape: tuple[int, ...]) -> None:
    spec = spec_of({"t": (dtype, shape)})
    given_ = values(spec)
    got = views(Layout(spec), pack(spec, given_))["t"]
    assert got.dtype == DTYPES[dtype]
    assert got.shape == shape
    assert got.tobytes() == given_["t"].tobytes()


def test_padding_is_zero() -> None:
    spec = spec_of({"a": ("uint8", (3,)), "b": ("float32", (1,))})
    payload = pack(spec, {"a": np.full(3, 255, np.uint8), "b": np.ones(1, np.float32)})
    assert payload[3:64].tolist() == [0] * 61
    assert payload[68:].tolist() == [0] * 60
    assert allocate(Layout(spec))[3:64].tolist() == [0] * 61


def test_a_model_of_empty_tensors_has_no_frames_and_is_complete_at_once() -> None:
    spec = spec_of({"a": ("float32", (0,)), "b": ("int64", (3, 0))})
    payload = pack(spec, values(spec))
    assert Layout(spec).frames == 0
    assert list(cut(payload)) == []
    assert FrameCheck(seal(spec, payload)).complete


def test_big_endian_arrays_are_packed_little_endian() -> None:
    spec = spec_of({"a": ("int32", (2,))})
    payload = pack(spec, {"a": np.array([1, 2], dtype=">i4")})
    assert payload[:8].tobytes() == b"\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 2), np.float32), np.zeros(4, np.float64), np.zeros((), np.float32)]
)
def test_packing_an_array_of_another_shape_or_dtype_is_refused_by_name(wrong: np.ndarray) -> None:
    with pytest.raises(Rejected, match=r"weight \(float32 \[4\]\) cannot hold"):
        pack(spec_of({"weight": ("float32", (4,))}), {"weight": wrong})


def test_cut_can_begin_at_any_frame() -> None:
    spec = spec_of({"t": ("uint8", (FRAME * 2 + 10,))})
    payload = pack(spec, values(spec))
    frames = [bytes(frame) for frame in cut(payload)]
    for start in range(4):
        assert [bytes(frame) for frame in cut(payload, start)] == frames[start:]


def test_numbers_share_the_frames_memory() -> None:
    spec = spec_of({"a": ("float32", (3,)), "b": ("bfloat16", (2,))})
    payload = pack(spec, values(spec))
    frame = bytearray(payload.tobytes())
    spans = list(Layout(spec).spans(0))
    numbers(spec.tensors[0], spans[0], frame)[1] = 42.0
    numbers(spec.tensors[1], spans[1], frame)[0] = 7.0
    changed = views(Layout(spec), np.frombuffer(frame, np.uint8))
    assert changed["a"][1] == 42.0
    assert changed["b"][0] == 7.0


def test_as_bytes_looks_at_any_buffer_as_plain_bytes() -> None:
    array = np.arange(4, dtype=np.uint8)
    for buffer in (array, array.tobytes(), bytearray(array.tobytes()), memoryview(array.tobytes())):
        assert bytes(as_bytes(buffer)) == b"\0\1\2\3"


# FrameCheck.


@pytest.fixture(scope="module")
def sample() -> tuple[Manifest, list[bytes]]:
    spec = spec_of(MIXED)
    payload = pack(spec, values(spec))
    return seal(spec, payload), [bytes(frame) for frame in cut(payload)]


def test_sound_frames_pass_and_the_next_index_counts_them(sample: tuple[Manifest, list[bytes]]) -> None:
    manifest, frames = sample
    check = FrameCheck(manifest)
    for index, frame in enumerate(frames):
        assert check.next == index
        assert not check.complete
        check.feed(frame)
    assert check.complete
    assert check.next == len(frames) == 3


@pytest.mark.parametrize("size", [0, 1, FRAME - 64, FRAME + 64])
def test_a_frame_of_the_wrong_length_is_rejected(sample: tuple[Manifest, list[bytes]], size: int) -> None:
    with pytest.raises(Rejected, match=f"frame 0 has {size} bytes, not {FRAME}"):
        FrameCheck(sample[0]).feed(bytes(size))


def test_a_short_last_frame_is_rejected(sample: tuple[Manifest, list[bytes]]) -> None:
    check = FrameCheck(sample[0])
    check.feed(sample[1][0])
    check.feed(sample[1][1])
    with pytest.raises(Rejected, match="frame 2 has"):
        check.feed(sample[1][2][:-64])


def test_one_frame_too_many_is_rejected(sample: tuple[Manifest, list[bytes]]) -> None:
    check = FrameCheck(sample[0])
    for frame in sample[1]:
        check.feed(frame)
    with pytest.raises(Rejected, match="more than the 3 frames"):
        check.feed(sample[1][2])
    with pytest.raises(Rejected, match="more than the 3 frames"):
        check.feed(b"")


def test_frames_out_of_order_are_rejected_naming_a_tensor(sample: tuple[Manifest, list[bytes]]) -> None:
    check = FrameCheck(sample[0])
    with pytest.raises(Rejected, match=r"tensor (scalar|long) |padding"):
        check.feed(sample[1][1])


@settings(max_examples=60, deadline=None)
@given(specs(), st.data())
def test_a_flipped_bit_is_rejected_naming_its_tensor(spec: ModelSpec, data: st.DataObject) -> None:
    layout = Layout(spec)
    full = [i for i, info in enumerate(spec.tensors) if info.nbytes]
    if not full:
        return
    payload = pack(spec, values(spec))
    manifest = seal(spec, payload)
    tensor = data.draw(st.sampled_from(full))
    at = data.draw(st.integers(0, spec.tensors[tensor].nbytes - 1))
    payload[layout.offsets[tensor] + at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Rejected, match=f"tensor {spec.tensors[tensor].name} "):
        _fed(manifest, cut(payload))


@pytest.mark.parametrize("dtype", sorted(FLOATS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_number_that_is_not_finite_is_rejected_even_if_the_digest_is_right(
    dtype: str, bad: float, where: str
) -> None:
    count = FRAME // DTYPES[dtype].itemsize + 9  # two frames
    spec = spec_of({"before": (dtype, (3,)), "bad": (dtype, (count,)), "after": (dtype, (3,))})
    arrays = values(spec)
    arrays["bad"][{"first": 0, "middle": count // 2, "last": -1}[where]] = bad
    payload = pack(spec, arrays)
    with pytest.raises(Rejected, match="tensor bad holds NaN or infinite values"):
        _fed(seal(spec, payload), cut(payload))


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_the_largest_and_smallest_finite_numbers_pass(dtype: str) -> None:
    kind = DTYPES[dtype]
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize]
    infinity = np.array([np.inf]).astype(kind).view(bits)[0]
    extremes = np.array([infinity - 1, 1, 0], dtype=bits).view(kind)  # largest, smallest subnormal, zero
    spec = spec_of({"t": (dtype, (6,))})
    payload = pack(spec, {"t": np.concatenate([extremes, -extremes])})
    assert _fed(seal(spec, payload), cut(payload)).complete
    assert peaks(extremes) == [float(extremes[0].astype(np.float64))]


def test_a_wrong_digest_of_an_empty_tensor_is_rejected() -> None:
    spec = spec_of({"empty": ("float32", (0,)), "t": ("float32", (2,))})
    payload = pack(spec, values(spec))
    manifest = Manifest(spec, (bytes(32), seal(spec, payload).digests[1]))
    with pytest.raises(Rejected, match="tensor empty does not match its digest"):
        _fed(manifest, cut(payload))


def test_a_wrong_digest_is_rejected_even_if_no_frame_ever_arrives() -> None:
    spec = spec_of({"empty": ("float32", (0,))})
    with pytest.raises(Rejected, match="tensor empty does not match its digest"):
        _fed(Manifest(spec, (bytes(32),)), iter(()))


# Deltas.


@settings(max_examples=60, deadline=None)
@given(specs(), st.data())
def test_a_delta_is_the_payload_of_the_subset(spec: ModelSpec, data: st.DataObject) -> None:
    wanted = sorted(data.draw(st.sets(st.integers(0, len(spec.tensors) - 1))))
    arrays = values(spec)
    frames = [bytes(frame) for frame in cut(pack(spec, arrays))]
    got = list(select(Layout(spec), frames.__getitem__, wanted))
    subset = spec.subset(spec.names[i] for i in wanted)
    assert got == [bytes(frame) for frame in cut(pack(subset, arrays))]


def test_a_delta_of_nothing_is_nothing() -> None:
    spec = spec_of(MIXED)
    assert list(select(Layout(spec), [b""].__getitem__, [])) == []
