"""A job of FedBuff whose sites remember what they were sent and what they returned, to compute it again."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.values.history import Version
from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Init, Task, Train
from tests.support import LightSite, filled

SPEC = ModelSpec(
    (
        TensorInfo("weight", "float32", (40, 30), Role.PARAM),
        TensorInfo("running_var", "float32", (30,), Role.STAT),
        TensorInfo("batches", "int64", (), Role.COUNT),
    )
)
SITES = ("a", "b", "c")
Arrays = Mapping[str, np.ndarray]


class Log:
    """What sites were sent and what they returned."""

    def __init__(self) -> None:
        self.keys: dict[int, ModelKey] = {}  # of the versions that they were sent
        self.models: dict[ModelKey, Arrays] = {}
        self.updates: dict[str, tuple[ModelKey, Arrays]] = {}  # by task: the model it began with, the update

    async def answer(self, site: LightSite, task: Task) -> None:
        """Train, and remember everything."""
        if isinstance(task.work, Init):
            await site.send(task, filled(SPEC, 1))
        elif isinstance(task.work, Train):
            model = await site.fetch(task.work.model)
            self.keys[task.work.version] = task.work.model
            known = self.models.setdefault(task.work.model, model)
            assert all(known[name].tobytes() == model[name].tobytes() for name in model), "a version changed"
            rng = np.random.default_rng([ord(site.name), task.round])
            update = {
                "weight": model["weight"] + rng.standard_normal((40, 30)).astype(np.float32),
                "running_var": (model["running_var"] * 0.9 + rng.random(30)).astype(np.float32),
                "batches": model["batches"] + 1,
            }
            self.updates[task.id] = (task.work.model, update)
            await site.send(task, update, loss=0.5, metrics={"shift": 1.0})


def check(
    history: Sequence[Version], log: Log, last: Arrays, lr: float = 1.0, by_weights: bool = False
) -> int:
    """Compute every version again, with nothing but numpy; return how many could be compared."""
    keys = log.keys
    models = {version: log.models.get(key) for version, key in keys.items()} | {len(history) - 1: last}
    checked = 0
    for record in history[1:]:
        before, after = models.get(record.version - 1), models.get(record.version)
        total, mean, weights = np.zeros((40, 30)), np.zeros(30), []
        for entry in record.updates:
            base, update = log.updates[entry.task]
            stale = record.version - 1 - next(v for v, key in keys.items() if key == base)
            assert entry.staleness[0] == stale
            weights.append(1 / np.sqrt(1.0 + stale))
            assert entry.weight == pytest.approx(weights[-1], rel=1e-15)
            moved = update["weight"].astype(float) - log.models[base]["weight"].astype(float)
            total += weights[-1] * moved
            mean += weights[-1] * update["running_var"].astype(float)
        if before is None or after is None:
            continue  # no site was sent it
        step = lr * total / (sum(weights) if by_weights else len(weights))
        np.testing.assert_allclose(after["weight"], before["weight"] + step, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(after["running_var"], mean / sum(weights), rtol=1e-6)
        checked += 1
    return checked
