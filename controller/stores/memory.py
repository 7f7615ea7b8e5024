"""Models in this process's memory: for tests and for runs that nobody needs to resume."""

import threading
from collections.abc import Sequence

from hansa.common.errors import NotFound
from hansa.common.frames import Buffer, Layout
from hansa.common.ids import ModelKey
from hansa.common.model import Manifest, ModelSpec
from hansa.controller.stores.base import Draft, Store, StoredModel


class _Model(StoredModel):
    def __init__(self, key: ModelKey, manifest: Manifest, peaks: Sequence[float], frames: Sequence[bytes]) -> None:
        super().__init__(key, manifest, peaks)
        self._frames = frames

    def read(self, index: int) -> bytes:
        return self._frames[index]

    def close(self) -> None:
        pass


class _Draft(Draft):
    def __init__(self, store: "MemoryStore", key: ModelKey, spec: ModelSpec) -> None:
        self._store = store
        self._key = key
        self._frames: list[bytes | None] = [None] * Layout(spec).frames

    def write(self, index: int, frame: Buffer) -> None:
        self._frames[index] = bytes(frame)  # no copy if it is bytes already

    def publish(self, manifest: Manifest, peaks: Sequence[float]) -> None:
        frames = [frame for frame in self._frames if frame is not None]
        assert len(frames) == len(self._frames), "published before every frame was written"
        self._store.put(_Model(self._key, manifest, peaks, frames))

    def discard(self) -> None:
        self._frames = []


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
