"""Plays a job's engine by hand, and carries out its orders in earnest: models are in a store."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np

from hansa.common.models.frames import Layout, views
from hansa.common.models.model import ModelSpec
from hansa.common.values.ids import update_key
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine.effects import StartOrder
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.bench import Bench
from tests.support import small_spec
from tests.unit.engine.play import JOB, Play
from tests.unit.samples import keep, payload_of, values

SPEC = small_spec()
Arrays = dict[str, np.ndarray]


class Computed(Play):
    """A job whose examinations and merges are computed; its sites return the models that they are given."""

    def __init__(self, model: ModelSpec = SPEC, **fields: Any) -> None:
        super().__init__(**{"evaluate": {"every": 1000}, "pace": {"rounds": 100}, **fields})
        self.store, self.model = MemoryStore(), model
        self._pool = ThreadPoolExecutor(1)
        self._bench = Bench(JOB, self.machine.rule, self.store, self._pool, 1 << 26)

    def __enter__(self) -> "Computed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def begin(self, *sites: str, seed: int = 0) -> Arrays:
        """Bring the job to its first round with these sites, and return version 0."""
        self.training(*sites)
        assert self.machine.state.current is not None
        keep(self.store, self.machine.state.current, self.model, values(self.model, seed))
        return self.community()

    def answer(self, site: str, arrays: Mapping[str, np.ndarray], **facts: Any) -> None:
        """Let a site return a model, and carry out what is ordered then."""
        task = self.tasks(Train)[site]
        keep(self.store, update_key(task.id), self.model, arrays)
        self.update(task, **facts)
        self.carry_out()

    def carry_out(self) -> None:
        """Carry out orders until none is open."""
        while starts := [effect for effect in self.machine.resume() if isinstance(effect, StartOrder)]:
            for start in starts:
                self.done(start.number, self._bench.carry_out(start, self._bench.drafts()).result)

    def community(self) -> Arrays:
        """Return the newest community model."""
        assert self.machine.state.current is not None
        with self.store.open(self.machine.state.current) as stored:
            payload = payload_of(stored).copy()
        return {name: array.copy() for name, array in views(Layout(self.model), payload).items()}

    def task(self, site: str) -> Task:
        """Return the open training task of a site."""
        return self.tasks(Train)[site]


def bits(arrays: Arrays) -> dict[str, bytes]:
    """Return the bits of a model."""
    return {name: array.tobytes() for name, array in arrays.items()}
