"""Plays a job with real models: a store in memory, orders that are carried out, a function for sites."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np

from hansa.common.methods.importance import IMPORTANCE
from hansa.common.models.frames import Layout, pack, seal, views
from hansa.common.models.model import ModelSpec, Role
from hansa.common.torch.seeding import task_seed
from hansa.common.values.ids import ModelKey, community_key, update_key
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import DropModels, Effect, SendTask, StartOrder
from hansa.controller.engine.orders import ExamineHop, Merge
from hansa.controller.pacers.trips import Trip
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.bench import Bench
from tests.unit.engine.play import JOB, Play
from tests.unit.samples import keep, spec_of, values

Arrays = Mapping[str, np.ndarray]
Training = Callable[[Arrays, Task], Arrays]
SPEC = spec_of(
    {"w": ("float32", (3, 4)), "b": ("float64", (2,)), "var": ("float32", (4,)), "n": ("int64", ())},
    {"var": Role.STAT},
)
MEMORY = 1 << 20
SITES = tuple(f"s{i}" for i in range(8))
FIRST = values(SPEC, 3)


def arrays_of(store: MemoryStore, *keys: ModelKey) -> dict[str, np.ndarray]:
    """Return the arrays of models, each laid over the ones before; a dropped model raises NotFound."""
    arrays: dict[str, np.ndarray] = {}
    for key in keys:
        with store.open(key) as model:
            payload = np.frombuffer(b"".join(model.read(i) for i in range(model.layout.frames)), np.uint8)
            arrays |= views(Layout(model.manifest.spec), payload)
    return arrays


class Travel(Play):
    """A job whose tasks are done by a function, in random order."""

    def __init__(self, train: Training, spec: ModelSpec = SPEC, chance: int = 0, **fields: Any) -> None:
        super().__init__(**fields)
        self.store, self.spec_, self.train = MemoryStore(), spec, train
        self.chance = Random(chance)
        self.tasks_given: list[Task] = []
        self.merges: list[Merge] = []
        self.importance: Callable[[Task], float | None] = lambda _: None
        self.n_train: Callable[[Task], int] = lambda _: 10
        self.fails: Callable[[Task], bool] = lambda _: False
        self.waiting: list[Effect] = []

    @property
    def model(self) -> dict[str, np.ndarray]:
        """The newest community model."""
        assert self.machine.state.current is not None
        return arrays_of(self.store, self.machine.state.current)

    @property
    def digest(self) -> str:
        """The digest of the newest community model."""
        return self.machine.state.history[-1].digest

    def do(self, event: ev.Event) -> list[Effect]:
        """Apply an event, and note the effects that are to be carried out."""
        effects = super().do(event)
        for effect in effects:
            if isinstance(effect, DropModels):
                for key in effect.keys:
                    assert self.store.has(key), f"{key} is dropped but was not in the store"
                    self.store.delete(key)
            elif isinstance(effect, SendTask | StartOrder):
                self.waiting.append(effect)
        return effects

    def run(
        self, *sites: str, first: Arrays | None = None, until: Callable[[], bool] = lambda: False
    ) -> "Travel":
        """Let sites join, then carry out effects in random order until none is left or `until` holds."""
        if first is not None:
            digest = keep(self.store, community_key(JOB, 0), self.spec_, first).manifest.digest.hex()
            self.do(ev.ModelGiven(at=0, digest=digest))
        for site in sites:
            if not self.machine.ended:
                self.join(site)
        while self.waiting and not until():
            self.carry_out(self.waiting.pop(self.chance.randrange(len(self.waiting))))
        return self

    def carry_out(self, effect: Effect) -> None:
        """Carry out an order, or do a task that is still open."""
        match effect:
            case StartOrder(number, order):
                assert isinstance(order, Merge | ExamineHop)
                if isinstance(order, Merge):
                    self.merges.append(order)
                with ThreadPoolExecutor(2) as pool:
                    bench = Bench(JOB, self.machine.rule, self.store, pool, MEMORY)
                    result = bench.carry_out(effect, bench.drafts()).result
                self.done(number, result)
            case SendTask(task) if task.id in self.machine.state.tasks:
                self._answer(task)

    def _answer(self, task: Task) -> None:
        if isinstance(task.work, Evaluate):
            arrays_of(self.store, *task.models)
            self.report(task)
            return
        if isinstance(task.work, Init):
            trained: Arrays = {i.name: np.zeros(i.shape, i.dtype) for i in self.spec_.tensors}
        else:
            assert isinstance(task.work, Train)
            self.tasks_given.append(task)
            if self.fails(task):
                self.fail(task)
                return
            trained = self.train(arrays_of(self.store, *task.models), task)
        scope = task.work.tensors if isinstance(task.work, Train) else ()
        spec = self.spec_.subset(scope) if scope else self.spec_
        update = keep(self.store, update_key(task.id), spec, {name: trained[name] for name in spec.names})
        score = self.importance(task)
        facts = UpdateFacts(
            n_train=self.n_train(task),
            n_used=1,
            steps=3,
            epochs=1,
            seconds=0,
            loss=0.5,
            metrics={} if score is None else {IMPORTANCE: score},
        )
        digest, tensors = update.manifest.digest.hex(), len(spec.tensors)
        self.do(
            ev.UpdateArrived(
                at=self.now, task=task.id, site=task.site, facts=facts, digest=digest, tensors=tensors
            )
        )


def digest_of(spec: ModelSpec, arrays: Arrays) -> str:
    """Return the digest of a model with these arrays."""
    return seal(spec, pack(spec, arrays)).digest.hex()


def noise(arrays: Arrays, task: Task) -> Arrays:
    """Train like a learner: the result depends on the model, the site, the round and the hop."""
    rng = np.random.default_rng(task_seed(task))
    trained = {}
    for name, array in arrays.items():
        step = (
            rng.standard_normal(array.shape) if array.dtype.kind == "f" else rng.integers(1, 9, array.shape)
        )
        trained[name] = (array * (0.9 if array.dtype.kind == "f" else 1) + step).astype(array.dtype)
    return trained


def constant(arrays: Arrays, task: Task) -> Arrays:
    """Add the number in the site's name."""
    return {name: array + array.dtype.type(int(task.site[1:])) for name, array in arrays.items()}


def radfed(rounds: int = 2, hops: int = 3, fraction: float = 0.5, **more: Any) -> dict[str, Any]:
    pace = {"rounds": rounds, "hops": hops} | more.pop("pace", {})
    return {"rule": "radfed", "pace": pace, "sample": {"fraction": fraction}, "sites": {"min": 8}} | more


def sync(rounds: int = 2, fraction: float = 0.5, **more: Any) -> dict[str, Any]:
    sample = {"kind": "uniform", "fraction": fraction}
    equal = {"weigh": {"kind": "equal"}, "sites": {"min": 8}}
    return {"rule": "fedavg", "pace": {"rounds": rounds}, "sample": sample} | equal | more


def trip_of(play: Play) -> Trip:
    trip = play.machine.memories["pace"]
    assert isinstance(trip, Trip)
    return trip


def hop_of(play: Play) -> dict[str, Task]:
    return play.tasks(Train)


def small(**pace: Any) -> Play:
    """Return a job with four sites and two slots in its first hop."""
    play = Play(**radfed(rounds=1, hops=2, pace=pace, sites={"min": 4}))
    play.training("a", "b", "c", "d")
    return play
