"""The manifests of models that were needed recently."""

from hansa.common.models.model import Manifest
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import Store
from hansa.controller.work.workers import Workers

REMEMBERED = 32


class Manifests:
    """Reads manifests from the store and keeps the last few: models never change."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store, self._workers = store, workers
        self._recent: dict[ModelKey, Manifest] = {}

    async def read(self, key: ModelKey) -> Manifest:
        """Return a model's manifest."""
        if key not in self._recent:
            manifest = await self._workers.io(self._read, key)
            while len(self._recent) >= REMEMBERED:
                self._recent.pop(next(iter(self._recent)))
            self._recent[key] = manifest
        return self._recent[key]

    def _read(self, key: ModelKey) -> Manifest:
        with self._store.open(key) as model:
            return model.manifest
