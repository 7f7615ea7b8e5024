"""The models that an order is writing and has not published yet."""

from hansa.common.models.model import ModelSpec
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import Draft, Store


class Drafts:
    """The drafts of an order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._drafts: list[Draft] = []

    def open(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin a model."""
        self._drafts.append(self._store.draft(key, spec))
        return self._drafts[-1]

    def published(self) -> None:
        """Note that all of them have been published."""
        self._drafts.clear()

    def discard(self) -> None:
        """Discard them; if the store is unavailable, the next try discards the rest."""
        while self._drafts:
            self._drafts[-1].discard()
            self._drafts.pop()
