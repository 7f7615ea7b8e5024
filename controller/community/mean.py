"""The weighted mean of stored models, streamed frame by frame (algorithms/README §4).

Per tensor, over the contributions that carry it; a tensor nobody carries is copied from the current model bit for bit.
COUNT tensors are never averaged: they come from the contribution with the largest weight (ties: the first).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np

from hansa.common.frames import FRAME, Sealer, Span, numbers
from hansa.common.model import DTYPES, Manifest, Role
from hansa.controller.community.grid import Grid
from hansa.controller.stores import Draft, StoredModel

WINDOW = 4  # frames under way at once


@dataclass(frozen=True)
class Weighted:
    """A model and what it counts for."""

    model: StoredModel
    weight: float


@dataclass(frozen=True)
class _Source:
    """Where a tensor's new values come from."""

    parts: tuple[Weighted, ...]  # with positive weight, carrying the tensor
    grid: Grid | None  # None: copy the only part
    total: float = 1.0


def merge(
    parts: Sequence[Weighted], current: StoredModel, draft: Draft, pool: Executor
) -> tuple[Manifest, list[float]]:
    """Write the weighted mean into a draft and return its manifest and peaks; the caller publishes."""
    live = [part for part in parts if part.weight > 0]
    sources = [_source(live, current, i) for i in range(len(current.manifest.spec.tensors))]
    sealer = Sealer(current.manifest.spec)
    frames = _ordered(pool, lambda i: _frame(sources, current, i), current.layout.frames)
    for index, frame in enumerate(frames):
        sealer.feed(frame)
        draft.write(index, frame)
    return sealer.manifest(), sealer.peaks


def _source(live: Sequence[Weighted], current: StoredModel, tensor: int) -> _Source:
    info = current.manifest.spec.tensors[tensor]
    held = tuple(part for part in live if info.name in part.model.manifest.spec.index)
    if not held:
        return _Source((Weighted(current, 1.0),), None)
    if info.role is Role.COUNT:
        return _Source((max(held, key=lambda part: part.weight),), None)  # max keeps the first of equals
    if len(held) == 1:
        return _Source(held, None)  # p·w/p is w
    weights = [part.weight for part in held]
    peaks = [part.model.peaks[part.model.manifest.spec.index[info.name]] for part in held]
    grid = Grid.of(weights, peaks)
    return _Source(held, grid, grid.sum(weights))


def _frame(sources: Sequence[_Source], current: StoredModel, index: int) -> np.ndarray:
    """Return one frame of the mean. It runs on a worker thread; numpy lets go of the interpreter lock."""
    made = np.zeros(current.layout.frame_size(index), dtype=np.uint8)
    spans = list(current.layout.spans(index))
    infos = [current.manifest.spec.tensors[span.tensor] for span in spans]
    rooms = [numbers(info, span, made) for info, span in zip(infos, spans, strict=True)]
    totals = [
        np.zeros(room.size) if sources[span.tensor].grid else room for room, span in zip(rooms, spans, strict=True)
    ]
    models = {part.model.key: part for span in spans for part in sources[span.tensor].parts}
    for part in models.values():
        cache: dict[int, bytes] = {}  # one model's frame at a time, however many models there are
        for span, info, total in zip(spans, infos, totals, strict=True):
            source = sources[span.tensor]
            if part not in source.parts:
                continue
            values = _read(part.model, info.name, span, DTYPES[info.dtype], cache)
            if source.grid is None:
                total[...] = values
            else:
                source.grid.add(total, values, part.weight)
    for span, room, total in zip(spans, rooms, totals, strict=True):
        if sources[span.tensor].grid:
            room[...] = (total / sources[span.tensor].total).astype(room.dtype)
    return made


def _read(model: StoredModel, name: str, span: Span, kind: np.dtype[np.generic], cache: dict[int, bytes]) -> np.ndarray:
    """Return a span of a tensor from a model whose payload may be laid out differently (a partial update)."""
    begin = model.layout.offsets[model.manifest.spec.index[name]] + span.start
    pieces, end = [], begin + span.size
    while begin < end:
        frame, within = divmod(begin, FRAME)
        if frame not in cache:
            cache[frame] = model.read(frame)
        take = min(end - begin, FRAME - within)
        pieces.append(np.frombuffer(cache[frame], dtype=kind, count=take // kind.itemsize, offset=within))
        begin += take
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _ordered(pool: Executor, work: Callable[[int], np.ndarray], count: int) -> Iterator[np.ndarray]:
    """Yield work(0), work(1), … with a few under way at once, so that memory stays bounded."""
    waiting: deque[Future[np.ndarray]] = deque()
    for index in range(count):
        waiting.append(pool.submit(work, index))
        if len(waiting) >= WINDOW:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
