"""Stores: where models live. One contract, several implementations; `hansa.controller.backends` opens them by URL."""

from hansa.controller.stores.base import Draft, Store, StoredModel

__all__ = ["Draft", "Store", "StoredModel"]
