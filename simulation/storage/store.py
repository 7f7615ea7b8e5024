"""The models of a simulation: in memory that worker processes share, and on a disk what exceeds it."""

import threading
from collections.abc import Sequence
from pathlib import Path

from hansa.common.models.frames import FRAME, Buffer, Layout, as_bytes
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.errors import Broken, InvalidInput, NotFound
from hansa.common.values.ids import JobId, ModelKey
from hansa.controller.storage.stores import Draft, Store, StoredModel
from hansa.controller.storage.stores.disk import DiskStore
from hansa.simulation.storage.slab import Slab, Slot


class SlabModel(StoredModel):
    """A model in shared memory."""

    def __init__(
        self, key: ModelKey, manifest: Manifest, peaks: Sequence[float], slab: Slab, slot: Slot
    ) -> None:
        super().__init__(key, manifest, peaks)
        self.slab, self.slot = slab, slot
        self._memory = slab.memory(slot)

    def read(self, index: int) -> bytes:
        """Return frame `index`."""
        return bytes(self._memory[index * FRAME : index * FRAME + self.layout.frame_size(index)])

    def close(self) -> None:
        """Do nothing: the store gives the slot back when the model is deleted and nobody reads it."""

    def __del__(self) -> None:
        self.slab.give_back(self.slot)


class _Draft(Draft):
    def __init__(self, store: "SharedStore", key: ModelKey, spec: ModelSpec) -> None:
        self._store, self._key = store, key
        self._slot: Slot | None = store.slab.take(Layout(spec).size)
        self._memory = store.slab.memory(self._slot)

    def write(self, index: int, frame: Buffer) -> None:
        if self._slot is None:
            raise Broken(f"the draft of {self._key} was discarded or published")
        data = as_bytes(frame)
        self._memory[index * FRAME : index * FRAME + len(data)] = data

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        if self._slot is None:
            raise Broken(f"the draft of {self._key} was discarded or published")
        slot, self._slot = self._slot, None
        self._store.adopt(self._key, manifest, peaks, slot)

    def discard(self) -> None:
        if self._slot is not None:
            self._store.slab.give_back(self._slot)
            self._slot = None


class SharedStore(Store):
    """Keeps models in a slab of at most `memory` bytes, and further ones in a folder."""

    def __init__(self, memory: int, folder: Path) -> None:
        self.url = "memory:"
        self.slab = Slab()
        self._most, self._folder = memory, folder
        self._lock = threading.Lock()
        self._models: dict[ModelKey, SlabModel] = {}
        self._spilled: DiskStore | None = None

    def acquire(self) -> None:
        """Do nothing: only this simulation can reach these models."""

    def adopt(self, key: ModelKey, manifest: Manifest, peaks: Sequence[float], slot: Slot) -> None:
        """Publish what is in a slot; the slot belongs to the model from now on."""
        with self._lock:
            self._models[key] = SlabModel(key, manifest, peaks, self.slab, slot)

    def require_room(self, bytes_: int) -> None:
        """Refuse models of which not even one has room."""
        if bytes_ > self._most:
            raise InvalidInput(
                f"--memory: there is room for {self._most >> 20} MiB of models, but one takes"
                f" {bytes_ / (1 << 20):.1f} MiB"
            )

    @property
    def full(self) -> bool:
        """Whether further models go to the disk."""
        return self.slab.used >= self._most

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        if not self.full:
            return _Draft(self, key, spec)
        if self._spilled is None:
            self._spilled = DiskStore(self._folder)
        return self._spilled.draft(key, spec)

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        with self._lock:
            if key in self._models:
                return self._models[key]
        if self._spilled is None:
            raise NotFound(f"the store has no model {key}")
        return self._spilled.open(key)

    def has(self, key: ModelKey) -> bool:
        """Whether the store has a model."""
        return key in self._models or (self._spilled is not None and self._spilled.has(key))

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none. Its slot is free once nobody reads it."""
        with self._lock:
            known = self._models.pop(key, None)
        if known is None and self._spilled is not None:
            self._spilled.delete(key)

    def forget(self, job: JobId) -> None:
        """Remove all models of a job."""
        super().forget(job)
        if self._spilled is not None:
            self._spilled.forget(job)

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        spilled = self._spilled.keys(prefix) if self._spilled else []
        return sorted({*(key for key in self._models if key.startswith(prefix)), *spilled})

    def sweep(self) -> None:
        """Do nothing: drafts live and die with this process."""

    def close(self) -> None:
        """Forget everything."""
        self._models.clear()
        if self._spilled is not None:
            self._spilled.close()
        self.slab.close()
