"""Models in this process's memory: for tests and for runs that need not be resumed."""

import threading
from collections.abc import Sequence

import numpy as np

from hansa.common.models.frames import Buffer, Layout, as_bytes
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.errors import Broken, NotFound
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores.base import Draft, Store, StoredModel

Frame = bytes | np.ndarray


def frozen(frame: Buffer) -> Frame:
    """Return a frame that will not change: the frame itself if it is immutable, else a copy."""
    if isinstance(frame, bytes) or (
        isinstance(frame, np.ndarray) and frame.base is None and not frame.flags.writeable
    ):
        return frame
    return bytes(as_bytes(frame))


class MemoryModel(StoredModel):
    """A model whose frames are in memory."""

    def __init__(
        self, key: ModelKey, manifest: Manifest, peaks: Sequence[float], frames: Sequence[Frame]
    ) -> None:
        super().__init__(key, manifest, peaks)
        self._frames = list(frames)

    def read(self, index: int) -> bytes:
        """Return frame `index`; an array is copied only when it is first read."""
        frame = self._frames[index]
        if not isinstance(frame, bytes):
            frame = self._frames[index] = frame.tobytes()
        return frame

    def close(self) -> None:
        """Do nothing: memory needs no release."""


class _Draft(Draft):
    def __init__(self, store: "MemoryStore", key: ModelKey, spec: ModelSpec) -> None:
        self._store = store
        self._key = key
        self._frames: list[Frame | None] | None = [None] * Layout(spec).frames

    def write(self, index: int, frame: Buffer) -> None:
        self._room()[index] = frozen(frame)

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        room = self._room()
        frames = [frame for frame in room if frame is not None]
        assert len(frames) == len(room), "published before every frame was written"
        self._store.put(MemoryModel(self._key, manifest, peaks, frames))

    def discard(self) -> None:
        self._frames = None

    def _room(self) -> list[Frame | None]:
        if self._frames is None:
            raise Broken(f"the draft of {self._key} was discarded")
        return self._frames


class MemoryStore(Store):
    """A dictionary of models."""

    def __init__(self) -> None:
        self.url = "memory:"
        self._lock = threading.Lock()
        self._models: dict[ModelKey, StoredModel] = {}

    def put(self, model: StoredModel) -> None:
        """Enter a published model."""
        with self._lock:
            self._models[model.key] = model

    def acquire(self) -> None:
        """Do nothing: no other process can reach these models."""

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        return _Draft(self, key, spec)

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        with self._lock:
            if key not in self._models:
                raise NotFound(f"the store has no model {key}")
            return self._models[key]

    def has(self, key: ModelKey) -> bool:
        """Whether the store has a model."""
        with self._lock:
            return key in self._models

    def delete(self, key: ModelKey) -> None:
        """Remove a model; harmless if there is none."""
        with self._lock:
            self._models.pop(key, None)

    def keys(self, prefix: str = "") -> list[ModelKey]:
        """Return the keys that begin with `prefix`, sorted."""
        with self._lock:
            return sorted(key for key in self._models if key.startswith(prefix))

    def sweep(self) -> None:
        """Do nothing: drafts live and die with this process."""

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._models.clear()
