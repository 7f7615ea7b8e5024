"""A store that keeps its newest small models in memory, too: most are read once more, a moment after they were written.

An update is merged and a community model is sent out right after it was stored. For a small model, opening and reading
it again takes longer than the arithmetic; a large one would only drive others out.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from hansa.common.frames import Buffer, Layout
from hansa.common.ids import ModelKey
from hansa.common.model import Manifest, ModelSpec
from hansa.controller.stores.base import Draft, Store, StoredModel
from hansa.controller.stores.memory import Held, MemoryModel, MemoryStore, held

ROOM = 64 << 20  # bytes that are kept, at most
SMALL = 8  # models as large as this part of them are not worth it


def with_recent(store: Store, memory: int) -> Store:
    """Put a part of a memory budget before a store, unless that is in memory itself."""
    return store if isinstance(store, MemoryStore) else RecentStore(store, min(ROOM, memory // 16))


class _Draft(Draft):
    def __init__(self, store: "RecentStore", key: ModelKey, below: Draft) -> None:
        self._store, self._key, self._below = store, key, below
        self._frames: dict[int, Held] = {}

    def write(self, index: int, frame: Buffer) -> None:
        self._below.write(index, frame)
        self._frames[index] = held(frame)

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        self._store.forget(self._key)
        self._below.publish(manifest, peaks)
        frames, self._frames = self._frames, {}
        self._store.keep(MemoryModel(self._key, manifest, peaks, [frames[index] for index in sorted(frames)]))

    def discard(self) -> None:
        self._frames = {}
        self._below.discard()


class RecentStore(Store):
    """Another store, with `room` bytes of memory before it. What is durable, and what is there, that one decides."""

    def __init__(self, below: Store, room: int) -> None:
        self.url = below.url
        self._below, self._room = below, room
        self._lock = threading.Lock()
        self._recent: OrderedDict[ModelKey, StoredModel] = OrderedDict()

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        below = self._below.draft(key, spec)
        return _Draft(self, key, below) if Layout(spec).size * SMALL <= self._room else below

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        with self._lock:
            recent = self._recent.get(key)
        return recent or self._below.open(key)

    def has(self, key: ModelKey) -> bool:
        """Whether a model is there."""
        return self._below.has(key)

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""
        self.forget(key)
        self._below.delete(key)

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        return self._below.keys(prefix)

    def sweep(self) -> None:
        """Remove drafts that nobody will publish."""
        self._below.sweep()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._recent.clear()
        self._below.close()

    def keep(self, model: StoredModel) -> None:
        """Have a published model at hand; the oldest make room for it."""
        with self._lock:
            self._recent[model.key] = model
            while sum(kept.layout.size for kept in self._recent.values()) > self._room:
                self._recent.popitem(last=False)

    def forget(self, key: ModelKey) -> None:
        """Have a model no longer at hand."""
        with self._lock:
            self._recent.pop(key, None)
