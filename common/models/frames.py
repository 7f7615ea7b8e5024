"""Frames: how a model's bytes are laid out, cut, checked and reassembled.

The payload consists of each tensor's little-endian bytes, padded to 64, in the manifest's order. It is cut
into frames of 1 MiB (the last may be shorter). A frame is the unit on the wire, in the store and in the
arithmetic. Offsets are multiples of 64, so no number ever crosses a frame boundary.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from blake3 import blake3

from hansa.common.models.model import DTYPES, FLOATS, Arrays, Manifest, ModelSpec, TensorInfo
from hansa.common.values.errors import Rejected

FRAME = 1 << 20
WORTHWHILE = 1 << 18  # bytes for which handing work to another thread pays

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a tensor that lies in a frame: bytes `start:stop` of the tensor, at `at` in the frame."""

    tensor: int
    start: int
    stop: int
    at: int

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a spec lies in the payload."""

    spec: ModelSpec

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor begins; the last entry is the payload's size."""
        return self.spec.offsets

    @property
    def size(self) -> int:
        """The payload's bytes, padding included."""
        return self.offsets[-1]

    @property
    def frames(self) -> int:
        """The number of frames."""
        return -(-self.size // FRAME)

    def frame_size(self, index: int) -> int:
        """Return the number of bytes of frame `index`."""
        return min(FRAME, self.size - index * FRAME)

    def spans(self, index: int) -> Iterator[Span]:
        """Yield the parts of tensors that lie in frame `index`, in order."""
        first, end = index * FRAME, index * FRAME + self.frame_size(index)
        tensor = bisect_right(self.offsets, first) - 1
        while tensor < len(self.spec.tensors) and self.offsets[tensor] < end:
            begin = self.offsets[tensor]
            start = max(0, first - begin)
            stop = min(self.spec.sizes[tensor], end - begin)
            if stop > start:
                yield Span(tensor, start, stop, begin + start - first)
            tensor += 1

    def padding(self, index: int) -> Iterator[slice]:
        """Yield the parts of frame `index` between tensors, which hold zeros."""
        end = 0
        for span in self.spans(index):
            if end < span.at:
                yield slice(end, span.at)
            end = span.at + span.size
        if end < self.frame_size(index):
            yield slice(end, self.frame_size(index))

    def blank(self, index: int) -> np.ndarray:
        """Return room for frame `index`. Only the padding is cleared: everything else will be written."""
        room = np.empty(self.frame_size(index), dtype=np.uint8)
        for part in self.padding(index):
            room[part] = 0
        return room


def as_bytes(frame: Buffer) -> memoryview:
    """View a buffer as plain bytes."""
    return (frame.data if isinstance(frame, np.ndarray) else memoryview(frame)).cast("B")


def numbers(info: TensorInfo, span: Span, frame: Buffer) -> np.ndarray:
    """Return the numbers of a span as a flat array that shares the frame's memory."""
    kind = DTYPES[info.dtype]
    return np.frombuffer(frame, dtype=kind, count=span.size // kind.itemsize, offset=span.at)


def allocate(layout: Layout, room: np.ndarray | None = None) -> np.ndarray:
    """Return room for a payload. Only the padding is cleared: everything else will be written."""
    payload = np.empty(layout.size, dtype=np.uint8) if room is None else room
    for begin, size, end in zip(layout.offsets, layout.spec.sizes, layout.offsets[1:], strict=False):
        if begin + size < end:
            payload[begin + size : end] = 0
    return payload


def views(layout: Layout, payload: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tensors of a payload by name, sharing its memory."""
    spec, tensors = layout.spec, {}
    for info, begin, size in zip(spec.tensors, spec.offsets, spec.sizes, strict=False):
        flat = payload[begin : begin + size].view(DTYPES[info.dtype])
        tensors[info.name] = flat.reshape(info.shape)
    return tensors


def pack(spec: ModelSpec, arrays: Arrays, room: np.ndarray | None = None) -> np.ndarray:
    """Copy arrays into a payload, a new one without `room`; the arrays must match the spec."""
    layout = Layout(spec)
    payload = allocate(layout, room)
    for name, place in views(layout, payload).items():
        array = np.asarray(arrays[name])
        info = spec.tensors[spec.index[name]]
        if array.shape != place.shape or array.dtype.name != info.dtype:
            raise Rejected(f"{info} cannot hold {array.dtype.name} {list(array.shape)}")
        if not np.may_share_memory(array, place):  # otherwise it was trained in place
            place[...] = array
    return payload


def cut(payload: np.ndarray, start: int = 0) -> Iterator[memoryview]:
    """Yield the payload's frames from frame `start` on, without copying."""
    view = memoryview(payload.data)
    for at in range(start * FRAME, len(view), FRAME):
        yield view[at : at + FRAME]


class Sealer:
    """Takes a model's frames in order and computes every tensor's digest and peak (largest magnitude).

    Digests depend on the order; peaks do not, so a pool may compute them meanwhile. An array that was fed
    becomes read-only.
    """

    def __init__(self, spec: ModelSpec, peaks: bool = True, pool: Executor | None = None) -> None:
        self.layout = Layout(spec)
        self._wants_peaks, self._pool = peaks, pool
        self.next = 0
        self.digests: list[bytes] = []
        self._peaks = [0.0] * len(spec.tensors)
        self._pending: list[tuple[Sequence[Span], Future[Sequence[float]]]] = []
        self._hasher = blake3()
        self._close_empty()

    @property
    def complete(self) -> bool:
        """Whether every frame has arrived."""
        return self.next == self.layout.frames

    @property
    def peaks(self) -> list[float]:
        """The peaks of the tensors that are complete."""
        for spans, tops in self._pending:
            self._raise_peaks(spans, tops.result())
        self._pending.clear()
        return self._peaks[: len(self.digests)]

    def feed(self, frame: Buffer) -> None:
        """Take the next frame."""
        if isinstance(frame, np.ndarray):
            frame.flags.writeable = False
        whole, spans = as_bytes(frame), list(self.layout.spans(self.next))
        if self._wants_peaks:
            self._find_peaks(spans, frame)
        for span in spans:
            self._hasher.update(whole[span.at : span.at + span.size])
            if span.stop == self.layout.spec.sizes[span.tensor]:
                self._close_tensor()
                self._close_empty()
        self.next += 1

    def manifest(self) -> Manifest:
        """Return the manifest, once all frames have arrived."""
        assert self.complete
        return Manifest(self.layout.spec, tuple(self.digests))

    def _find_peaks(self, spans: Sequence[Span], frame: Buffer) -> None:
        """Compute the peaks of a frame's tensors."""
        for alike, values, starts in _floats(self.layout.spec, spans, frame):
            if self._pool is not None and values.nbytes >= WORTHWHILE:
                self._pending.append((alike, self._pool.submit(peaks, values, starts)))
            else:
                self._raise_peaks(alike, peaks(values, starts))

    def _raise_peaks(self, spans: Sequence[Span], tops: Sequence[float]) -> None:
        for span, top in zip(spans, tops, strict=True):
            self._peaks[span.tensor] = max(self._peaks[span.tensor], top)

    def _close_tensor(self) -> None:
        self.digests.append(self._hasher.digest())
        self._hasher = blake3()

    def _close_empty(self) -> None:
        sizes = self.layout.spec.sizes
        while len(self.digests) < len(sizes) and not sizes[len(self.digests)]:
            self._close_tensor()


def _floats(
    spec: ModelSpec, spans: Sequence[Span], room: Buffer
) -> Iterator[tuple[list[Span], np.ndarray, list[int]]]:
    """Yield spans of floats, neighbours of one type together: their values, and where each span starts."""
    tensors = spec.tensors
    for kind, group in groupby(spans, key=lambda span: tensors[span.tensor].dtype):
        if kind not in FLOATS:
            continue
        alike = list(group)
        first, last, width = alike[0], alike[-1], DTYPES[kind].itemsize
        count = (last.at + last.size - first.at) // width
        values = np.frombuffer(room, dtype=DTYPES[kind], count=count, offset=first.at)
        yield alike, values, [(span.at - first.at) // width for span in alike]


def peaks_of(spec: ModelSpec, payload: np.ndarray) -> list[float]:
    """Return the peak of every tensor of a payload, as a sealer does frame by frame."""
    tops = [0.0] * len(spec.tensors)
    places = enumerate(zip(spec.sizes, spec.offsets, strict=False))
    spans = [Span(number, 0, size, at) for number, (size, at) in places if size]
    for alike, values, starts in _floats(spec, spans, payload):
        for span, top in zip(alike, peaks(values, starts), strict=True):
            tops[span.tensor] = max(0.0, top)
    return tops


def peaks(values: np.ndarray, starts: Sequence[int] = (0,)) -> list[float]:
    """Return the largest magnitude of each part, by where parts start; infinite if a value is not finite."""
    if values.dtype.itemsize < 4:
        values = values.astype(np.float32)
    tops = np.maximum(np.maximum.reduceat(values, starts), -np.minimum.reduceat(values, starts))
    return [float(top) if np.isfinite(top) else float("inf") for top in tops]


class FrameCheck:
    """Checks a model's frames as they arrive: length, order, digests and, if `finite`, finite numbers."""

    def __init__(self, manifest: Manifest, finite: bool = True) -> None:
        self.manifest = manifest
        self.sealer = Sealer(manifest.spec, peaks=finite)
        self._checked = 0
        self._check_closed()

    @property
    def next(self) -> int:
        """The index of the frame that is expected next."""
        return self.sealer.next

    @property
    def complete(self) -> bool:
        """Whether every frame has arrived."""
        return self.sealer.complete

    def feed(self, frame: Buffer) -> None:
        """Take the next frame; raise Rejected, naming the tensor, if it is wrong."""
        layout, size = self.sealer.layout, as_bytes(frame).nbytes
        if self.complete:
            raise Rejected(f"more than the {layout.frames} frames of the manifest were sent")
        if size != layout.frame_size(self.next):
            raise Rejected(f"frame {self.next} has {size} bytes, not {layout.frame_size(self.next)}")
        if any(any(as_bytes(frame)[part]) for part in layout.padding(self.next)):
            raise Rejected(f"the padding in frame {self.next} is not zero")
        self.sealer.feed(frame)
        self._check_closed()

    def finish(self) -> None:
        """Raise Rejected unless every frame has arrived and was right; a wrong one stays wrong."""
        self._check_closed()
        if not self.complete:
            raise Rejected(f"only {self.next} of {self.sealer.layout.frames} frames were sent")

    def _check_closed(self) -> None:
        peaks = self.sealer.peaks
        for i in range(self._checked, len(self.sealer.digests)):
            name = self.manifest.spec.tensors[i].name
            if not np.isfinite(peaks[i]):
                raise Rejected(f"tensor {name} holds NaN or infinite values")
            if self.sealer.digests[i] != self.manifest.digests[i]:
                raise Rejected(f"tensor {name} does not match its digest")
        self._checked = len(self.sealer.digests)


def seal(spec: ModelSpec, payload: np.ndarray) -> Manifest:
    """Return the manifest of a payload: its spec and the digest of every tensor."""
    sealer = Sealer(spec, peaks=False)
    for frame in cut(payload):
        sealer.feed(frame)
    return sealer.manifest()


def select(
    source: Layout, read: Callable[[int], bytes], wanted: Sequence[int], start: int = 0
) -> Iterator[bytes]:
    """Yield the frames, from `start` on, of a payload that holds only some of a model's tensors.

    `read` returns a stored frame of the whole model. If all tensors are wanted, frames pass unchanged.
    """
    if len(wanted) == len(source.spec.tensors):
        yield from (read(i) for i in range(start, source.frames))
        return
    room, skipped = bytearray(), start * FRAME
    for tensor in wanted:
        begin, end = source.offsets[tensor], source.offsets[tensor + 1]
        passed = min(skipped, end - begin)
        begin, skipped = begin + passed, skipped - passed
        while begin < end:
            frame, within = divmod(begin, FRAME)
            take = min(end - begin, FRAME - within, FRAME - len(room))
            room += memoryview(read(frame))[within : within + take]
            begin += take
            if len(room) == FRAME:
                yield bytes(room)
                room.clear()
    if room:
        yield bytes(room)
