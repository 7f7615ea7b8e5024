"""Blocks of tasks, and of their outcomes, as they travel between the driver and those who do them."""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hansa.common.models.frames import Layout, views
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.ids import ModelKey, TaskId
from hansa.controller.storage.stores import StoredModel
from hansa.simulation.crew.base import Assignment, Model, Models, Outcome, Update
from hansa.simulation.storage.slab import Slab, Slot, View

Memory = memoryview | bytes | np.ndarray
Fetched = tuple[Manifest, Memory]


@dataclass(frozen=True)
class Reference:
    """Where a worker finds a model: in a slot of the slab, or with the block."""

    manifest: Manifest
    payload: Slot | bytes

    def fetched(self, view: View) -> Fetched:
        """Return the model."""
        payload = self.payload
        return self.manifest, view.memory(payload) if isinstance(payload, Slot) else payload


@dataclass(frozen=True)
class Block:
    """Some tasks, the models that they read, and the slots for their updates (None: no slot)."""

    number: int
    assignments: tuple[Assignment, ...]
    models: dict[ModelKey, Reference]
    slots: tuple[Slot | None, ...]
    over: tuple[TaskId, ...] = ()  # tasks that are paused there and were withdrawn


@dataclass(frozen=True)
class Ready:
    """A worker has loaded what it needs, or says why it cannot."""

    problem: str = ""


@dataclass(frozen=True)
class Done:
    """The outcomes of a block, in the order of its tasks."""

    number: int
    outcomes: tuple[Outcome, ...]


class BlockModels(Models):
    """The models of the block in hand; those of the block before stay, because the next is likely alike."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, Model] = {}
        self._specs: dict[ModelSpec, ModelSpec] = {}

    def take(self, keys: Iterable[ModelKey], fetch: Callable[[ModelKey], Fetched]) -> None:
        """Turn to the models of another block; only those that are not here yet are fetched."""
        self._models = {key: self._models.get(key) or self._model(*fetch(key)) for key in keys}

    def read(self, key: ModelKey) -> Model:
        """Return a model of the block."""
        return self._models[key]

    def _model(self, manifest: Manifest, memory: Memory) -> Model:
        # One object for equal specs: what was computed from a spec is kept in it.
        spec = self._specs.setdefault(manifest.spec, manifest.spec)
        payload = np.frombuffer(memory, dtype=np.uint8)
        payload.flags.writeable = False
        return Model(Manifest(spec, manifest.digests), views(Layout(spec), payload))


def whole_payload(model: StoredModel) -> bytes:
    """Return the payload of a stored model in one piece."""
    return b"".join(model.read(index) for index in range(model.layout.frames))


def sent(value: Any) -> bytes:
    """Return a value as it is sent to another process."""
    return pickle.dumps(value, protocol=5)


def received(data: bytes) -> Any:
    """Return a value that another process of this simulation has sent."""
    return pickle.loads(data)  # noqa: S301 - the other end runs our own code, for the same user


def placed(outcome: Outcome, slot: Slot | None, view: View | Slab) -> Outcome:
    """Put the payload of an update into its slot, if it fits, so that it need not be sent."""
    update = outcome.result
    if slot is None or not isinstance(update, Update) or isinstance(update.payload, Slot):
        return outcome
    if slot.size != update.payload.nbytes:
        return outcome
    view.memory(slot)[:] = update.payload.data
    return replace(outcome, result=replace(update, payload=slot))
