"""Stores: where models live. One contract, several implementations, opened by URL."""

from pathlib import Path

from hansa.common.errors import InvalidInput
from hansa.controller.stores.base import Draft, Store, StoredModel
from hansa.controller.stores.disk import DiskStore
from hansa.controller.stores.memory import MemoryStore

__all__ = ["Draft", "Store", "StoredModel", "open_store"]


def open_store(url: str) -> Store:
    """Open a store: `memory:` or `disk:PATH`."""
    kind, colon, place = url.partition(":")
    if kind == "memory" and colon and not place:
        return MemoryStore()
    if kind == "disk" and place:
        return DiskStore(Path(place).expanduser())
    raise InvalidInput(f"{url!r} is no store: write memory: or disk:PATH")
