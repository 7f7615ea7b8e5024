"""What an order is writing: models that are not published yet."""

from hansa.common.models.model import ModelSpec
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import Draft, Store


class Drafts:
    """The models that an order is writing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._drafts: list[Draft] = []

    def open(self, key: ModelKey, spec: ModelSpec) -> Draft:
        """Begin a model."""
        self._drafts.append(self._store.draft(key, spec))
        return self._drafts[-1]

    def published(self) -> None:
        """Take note that all of them are models now."""
        self._drafts.clear()

    def discard(self) -> None:
        """Throw them away; those that are left, because the store is away, are for the next try."""
        while self._drafts:
            self._drafts[-1].discard()
            self._drafts.pop()
