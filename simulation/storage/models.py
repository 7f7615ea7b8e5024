"""The models of a simulation, as tasks read them."""

from collections import OrderedDict

import numpy as np

from hansa.common.models.frames import allocate, as_bytes, views
from hansa.common.values.ids import ModelKey
from hansa.controller.storage.stores import Store
from hansa.simulation.crew.base import Model, Models

RECENT = 8  # models that stay as arrays; the tasks of a round read the same one


class StoredModels(Models):
    """Reads models from a store, and keeps the last few."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: OrderedDict[ModelKey, Model] = OrderedDict()

    def read(self, key: ModelKey) -> Model:
        """Return a model."""
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        with self._store.open(key) as stored:
            payload, at = allocate(stored.layout), 0
            for index in range(stored.layout.frames):
                frame = np.frombuffer(as_bytes(stored.read(index)), dtype=np.uint8)
                payload[at : at + len(frame)] = frame
                at += len(frame)
            payload.flags.writeable = False
            model = Model(stored.manifest, views(stored.layout, payload))
        while len(self._recent) >= RECENT:
            self._recent.popitem(last=False)
        self._recent[key] = model
        return model
