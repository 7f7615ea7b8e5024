"""Stores of models: one contract, several implementations; `storage.backends` opens them by URL."""

from hansa.controller.storage.stores.base import Draft, Store, StoredModel

__all__ = ["Draft", "Store", "StoredModel"]
