"""A store that also keeps its newest small models in memory: most are read right after they were written.

An update is merged, and a community model is sent out, right after it was stored. For a small model, opening
and reading it again takes longer than the arithmetic; a large one would only drive out others.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from hansa.common.models.frames import Buffer, Layout
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.storage.stores.base import Draft, Store, StoredModel
from hansa.controller.storage.stores.memory import Frame, MemoryModel, MemoryStore, frozen

ROOM = 64 << 20  # bytes of models that are kept, at most
SMALL = 8  # models larger than this fraction of the room are not kept


def with_recent(store: Store, memory: int) -> Store:
    """Put a part of a memory budget in front of a store, unless the store itself is in memory."""
    return store if isinstance(store, MemoryStore) else RecentStore(store, min(ROOM, memory // 16))


class _Draft(Draft):
    def __init__(self, store: "RecentStore", key: ModelKey, below: Draft) -> None:
        self._store, self.key, self.below = store, key, below
        self._frames: dict[int, Frame] | None = {}  # None if there is no room for them
        self.overtaken = False  # by a deletion or another draft, while it is published

    def write(self, index: int, frame: Buffer) -> None:
        self.below.write(index, frame)
        frames = self._frames
        if frames is not None:
            frames[index] = frozen(frame)
            self._store.touch(self)

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        self._store.begin(self)
        self.below.publish(manifest, peaks)
        frames, self._frames = self._frames, None
        ordered = [frames[index] for index in sorted(frames)] if frames is not None else None
        self._store.end(self, None if ordered is None else MemoryModel(self.key, manifest, peaks, ordered))

    def discard(self) -> None:
        self._frames = None
        self._store.end(self, None)
        self.below.discard()

    def let_go(self) -> None:
        """Drop the frames; the store below has them."""
        self._frames = None


class RecentStore(Store):
    """A store with `room` bytes of memory in front of it. The store below decides which models exist."""

    def __init__(self, below: Store, room: int) -> None:
        self.url = below.url
        self.below, self._room = below, room
        self._lock = threading.Lock()
        self._recent: dict[ModelKey, StoredModel] = {}
        # Sizes of the models and drafts in memory, the oldest first.
        self._sizes: OrderedDict[ModelKey | _Draft, int] = OrderedDict()
        self._free = room
        self._publishing: dict[ModelKey, _Draft] = {}

    @property
    def free(self) -> int:
        """The bytes of memory that neither models nor drafts use."""
        return self._free

    def acquire(self) -> None:
        """Claim the store below."""
        self.below.acquire()

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        draft, size = _Draft(self, key, self.below.draft(key, spec)), Layout(spec).size
        if size * SMALL > self._room:
            draft.let_go()
        else:
            with self._lock:
                self._hold(draft, size)
        return draft

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        with self._lock:
            recent = self._recent.get(key)
        return recent or self.below.open(key)

    def has(self, key: ModelKey) -> bool:
        """Whether the store has a model."""
        return self.below.has(key)

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""
        with self._lock:
            self._forget(key)
            if key in self._publishing:
                self._publishing[key].overtaken = True
        self.below.delete(key)

    def forget(self, job: JobId) -> None:
        """Remove all models of a job."""
        super().forget(job)
        self.below.forget(job)

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        return self.below.keys(prefix)

    def sweep(self) -> None:
        """Remove drafts that will never be published."""
        self.below.sweep()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._recent.clear()
            self._sizes.clear()
            self._free = self._room
        self.below.close()

    def touch(self, draft: _Draft) -> None:
        """Note that a draft is being written: idle drafts make room first."""
        with self._lock:
            if draft in self._sizes:
                self._sizes.move_to_end(draft)

    def begin(self, draft: _Draft) -> None:
        """Note that a draft is being published: the former model under its key is no longer valid."""
        with self._lock:
            self._forget(draft.key)
            other = self._publishing.get(draft.key, draft)
            if other is not draft:  # only the store below knows which of them comes last
                other.overtaken = draft.overtaken = True
            self._publishing[draft.key] = draft

    def end(self, draft: _Draft, model: StoredModel | None) -> None:
        """Forget a draft; keep its model if it was published. The oldest models make room."""
        with self._lock:
            self._free += self._sizes.pop(draft, 0)
            if self._publishing.get(draft.key) is draft:
                del self._publishing[draft.key]
            if model and not draft.overtaken:
                self._forget(model.key)
                self._recent[model.key] = model
                self._hold(model.key, model.layout.size)

    def _hold(self, what: ModelKey | _Draft, size: int) -> None:
        self._sizes[what] = size
        self._free -= size
        while self._free < 0:
            oldest, freed = self._sizes.popitem(last=False)
            self._free += freed
            if isinstance(oldest, _Draft):
                oldest.let_go()
            else:
                del self._recent[oldest]

    def _forget(self, key: ModelKey) -> None:
        self._recent.pop(key, None)
        self._free += self._sizes.pop(key, 0)
