"""Models in this process's memory: for tests and for runs that nobody needs to resume."""

import threading
from collections.abc import Sequence

import numpy as np

from hansa.common.models.frames import Buffer, Layout, as_bytes
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.errors import Broken, NotFound
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores.base import Draft, Store, StoredModel

Held = bytes | np.ndarray


def held(frame: Buffer) -> Held:
    """Return a frame to keep: one that cannot change any more as it is, a copy of any other."""
    if isinstance(frame, bytes) or (
        isinstance(frame, np.ndarray) and frame.base is None and not frame.flags.writeable
    ):
        return frame
    return bytes(as_bytes(frame))


class MemoryModel(StoredModel):
    """A model whose frames are in memory, for as long as somebody has it."""

    def __init__(
        self, key: ModelKey, manifest: Manifest, peaks: Sequence[float], frames: Sequence[Held]
    ) -> None:
        super().__init__(key, manifest, peaks)
        self._frames = list(frames)

    def read(self, index: int) -> bytes:
        """Return frame `index`; an array is copied when it is read for the first time, which may never be."""
        frame = self._frames[index]
        if not isinstance(frame, bytes):
            frame = self._frames[index] = frame.tobytes()
        return frame

    def close(self) -> None:
        """Nothing to give back."""


class _Draft(Draft):
    def __init__(self, store: "MemoryStore", key: ModelKey, spec: ModelSpec) -> None:
        self._store = store
        self._key = key
        self._frames: list[Held | None] | None = [None] * Layout(spec).frames

    def write(self, index: int, frame: Buffer) -> None:
        self._room()[index] = held(frame)

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        room = self._room()
        frames = [frame for frame in room if frame is not None]
        assert len(frames) == len(room), "published before every frame was written"
        self._store.put(MemoryModel(self._key, manifest, peaks, frames))

    def discard(self) -> None:
        self._frames = None

    def _room(self) -> list[Held | None]:
        if self._frames is None:
            raise Broken(f"the draft of {self._key} was thrown away")
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

    def draft(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin to write a model."""
        return _Draft(self, key, spec)

    def open(self, key: ModelKey) -> StoredModel:
        """Open a model for reading or raise NotFound."""
        with self._lock:
            if key not in self._models:
                raise NotFound(f"the store holds no model {key}")
            return self._models[key]

    def has(self, key: ModelKey) -> bool:
        """Whether a model is there."""
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
        """Nothing to do: drafts live and die with this process."""

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._models.clear()
