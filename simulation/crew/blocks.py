"""Blocks of tasks, and of their outcomes, as they travel between the driver and those who do them."""

import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hansa.common.models.frames import Layout, views
from hansa.common.models.model import Manifest, ModelSpec
from hansa.common.values.ids import ModelKey, TaskId
from hansa.simulation.crew.base import Assignment, Model, Models, Outcome, Update
from hansa.simulation.slab import Slot, View


@dataclass(frozen=True)
class Reference:
    """Where a worker finds a model: in a slot of the slab, or with the block."""

    manifest: Manifest
    payload: Slot | bytes


@dataclass(frozen=True)
class Block:
    """Some tasks, the models that they read, and the slots for their updates (None: no slot)."""

    number: int
    assignments: tuple[Assignment, ...]
    models: dict[ModelKey, Reference]
    slots: tuple[Slot | None, ...]
    over: tuple[TaskId, ...] = ()  # tasks that are paused there and were withdrawn


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

    def take(self, block: Block, view: View | None) -> None:
        """Turn to the models of another block."""
        self._models = {
            key: self._models.get(key) or self._model(reference, view)
            for key, reference in block.models.items()
        }

    def read(self, key: ModelKey) -> Model:
        """Return a model of the block."""
        return self._models[key]

    def _model(self, reference: Reference, view: View | None) -> Model:
        manifest = reference.manifest
        # One object for equal specs: what was computed from a spec is kept in it.
        spec = self._specs.setdefault(manifest.spec, manifest.spec)
        if isinstance(reference.payload, Slot):
            assert view is not None
            memory: memoryview | bytes = view.memory(reference.payload)
        else:
            memory = reference.payload
        payload = np.frombuffer(memory, dtype=np.uint8)
        payload.flags.writeable = False
        return Model(Manifest(spec, manifest.digests), views(Layout(spec), payload))


def sent(value: Any) -> bytes:
    """Return a value as it is sent to another process."""
    return pickle.dumps(value, protocol=5)


def received(data: bytes) -> Any:
    """Return a value that another process of this simulation has sent."""
    return pickle.loads(data)  # noqa: S301 - the other end runs our own code, for the same user


def placed(outcome: Outcome, slot: Slot | None, view: View | None) -> Outcome:
    """Put the payload of an update into its slot, if it fits, so that it need not be sent."""
    update = outcome.result
    if not isinstance(update, Update) or isinstance(update.payload, Slot):
        return outcome
    if slot is None or view is None or slot.size != update.payload.nbytes:
        return outcome
    view.memory(slot)[:] = update.payload.data
    return replace(outcome, result=replace(update, payload=slot))
