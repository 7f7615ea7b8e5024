"""Reads many stored models at once: keeps them open, finds carriers of tensors, reads parts of tensors."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hansa.common.models.frames import FRAME
from hansa.common.models.model import DTYPES, ModelSpec
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import StoredModel
from hansa.controller.values.members import Member

WINDOW = 4  # frames under way at once
GROUP = 128  # models open at once
Cache = dict[int, bytes]  # frames of one model
T = TypeVar("T")


@dataclass(frozen=True)
class Means:
    """The means to carry out merges."""

    open_model: Callable[[ModelKey], StoredModel]
    pool: Executor
    memory: int


class Library:
    """Open models, at most a few groups at a time."""

    def __init__(self, open_model: Callable[[ModelKey], StoredModel]) -> None:
        self._open_model = open_model
        self._open: dict[ModelKey, StoredModel] = {}

    def get(self, key: ModelKey) -> StoredModel:
        """Return a model; the one that was opened first may be closed to make room."""
        if key not in self._open:
            if len(self._open) >= 2 * GROUP:
                self._open.pop(next(iter(self._open))).close()
            self._open[key] = self._open_model(key)
        return self._open[key]

    def models(self, keys: Sequence[ModelKey]) -> dict[ModelKey, StoredModel]:
        """Return a group of models, all open."""
        for key in keys:  # the newest are closed last
            self._open |= {key: self._open.pop(key)} if key in self._open else {}
        return {key: self.get(key) for key in keys}

    def __enter__(self) -> "Library":
        return self

    def __exit__(self, *error: object) -> None:
        for model in self._open.values():
            model.close()


class Carriers:
    """Which members carry which tensor; computed when first needed."""

    def __init__(self, members: Sequence[Member], spec: ModelSpec, library: Library) -> None:
        self._members, self._spec, self._library = members, spec, library
        self._carriers: list[list[Member]] | None = None

    def of(self, tensor: int) -> list[Member]:
        """Return the members that carry a tensor and count."""
        if self._carriers is None:
            self._carriers = [[] for _ in self._spec.tensors]
            for member in self._members:
                if member.weight > 0:
                    for at in carried(member, self._library.get(member.model), self._spec):
                        self._carriers[at].append(member)
        return self._carriers[tensor]


def carried(member: Member, model: StoredModel, spec: ModelSpec) -> Iterator[int]:
    """Yield the positions of the tensors that a member carries."""
    for info in model.manifest.spec.tensors:
        if member.tensors is None or info.name in member.tensors:
            yield spec.index[info.name]


def read_numbers(model: StoredModel, name: str, start: int, stop: int, cache: Cache) -> np.ndarray:
    """Return the numbers start … stop-1 of a tensor, wherever it is in the model's payload."""
    at = model.manifest.spec.index[name]
    kind = DTYPES[model.manifest.spec.tensors[at].dtype]
    begin = model.layout.offsets[at] + start * kind.itemsize
    pieces, end = [], begin + (stop - start) * kind.itemsize
    while begin < end:
        frame, within = divmod(begin, FRAME)
        if frame not in cache:
            cache[frame] = model.read(frame)
        take = min(end - begin, FRAME - within)
        pieces.append(np.frombuffer(cache[frame], dtype=kind, count=take // kind.itemsize, offset=within))
        begin += take
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def ordered(pool: Executor, work: Callable[[int], T], count: int, window: int = WINDOW) -> Iterator[T]:
    """Yield work(0), work(1), … with a few of them under way at once, so that memory stays bounded."""
    if count == 1:  # a small model: to wait for another thread would take longer than the work
        yield work(0)
        return
    waiting: deque[Future[T]] = deque()
    try:
        for index in range(count):
            waiting.append(pool.submit(work, index))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
