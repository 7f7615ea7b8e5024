"""FedBuff over real gRPC: every community model computed again from what sites sent, with a restart."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.values.ids import ModelKey
from hansa.common.values.tasks import Init, Task, Train
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import Finding, verify
from tests.support import LightSite, Served, ended, filled, job, model_of, nothing, serving

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
        self.models: dict[ModelKey, Arrays] = {}
        self.updates: dict[str, tuple[ModelKey, Arrays]] = {}  # by task: the model it began with, the update

    async def answer(self, site: LightSite, task: Task) -> None:
        """Train as slowly as the site's name says, and remember everything."""
        if isinstance(task.work, Init):
            await site.send(task, filled(SPEC, 1))
        elif isinstance(task.work, Train):
            model = await site.fetch(task.work.model)
            self.models[task.work.model] = model
            rng = np.random.default_rng([ord(site.name), task.round])
            update = {
                "weight": model["weight"] + rng.standard_normal((40, 30)).astype(np.float32),
                "running_var": (model["running_var"] * 0.9 + rng.random(30)).astype(np.float32),
                "batches": model["batches"] + 1,
            }
            self.updates[task.id] = (task.work.model, update)
            for _ in range(3 * SITES.index(site.name)):
                await asyncio.sleep(0)  # others come first
            await site.send(task, update, loss=0.5, metrics={"shift": 1.0})


async def attend(served: Served, stack: AsyncExitStack, log: Log) -> None:
    for number, name in enumerate(SITES):
        site = LightSite(served.address, name, spec=SPEC, examples=10 + number, answer=log.answer)
        await stack.enter_async_context(site.attending())


def check(runner: JobRunner, log: Log, last: Arrays, lr: float, by_weights: bool) -> None:
    """Compute every version again, with nothing but numpy."""
    history = runner.machine.state.history
    keys = {0: next(iter(log.models))} | {n: ModelKey(f"{runner.id}/v{n}") for n in range(1, len(history))}
    models = {version: log.models.get(key) for version, key in keys.items()} | {len(history) - 1: last}
    checked = 0
    for record in history[1:]:
        before, after = models[record.version - 1], models[record.version]
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
    assert checked >= 3


def findings(folder: Path, job_id: str) -> list[Finding]:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == job_id]
        return verify(backends, record)[2]


@pytest.mark.parametrize("normalise", ["count", "weights"])
@pytest.mark.parametrize("lr", [1.0, 0.5])
async def test_every_community_model_follows_from_what_sites_sent_also_after_a_restart(
    tmp_path: Path, normalise: str, lr: float
) -> None:
    log = Log()
    words: dict[str, Any] = {"rule": "fedbuff", "pace": {"updates": 23, "buffer": 4}, "server": {"lr": lr}}
    spec = job(**words, merge={"normalise": normalise}, sites={"min": 3, "wait": 60})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        runner = await served.submit(spec, None, nothing())
        while runner.machine.state.version < 2 or not runner.machine.state.unmerged:
            await runner.next_change().wait()
    assert not runner.machine.ended
    assert findings(tmp_path, runner.id) == [], "it can be checked in mid-job, too"
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        again = await ended(served.jobs.runner(runner.id))
        assert again.view().status == "completed", again.view().reason
        last = model_of(served, again)
    counts = [len(record.updates) for record in again.machine.state.history]
    assert (counts[:6], sum(counts)) == ([0, 4, 4, 4, 4, 4], 23)
    assert max(u.staleness[0] for record in again.machine.state.history for u in record.updates) > 0
    assert {u.metrics["shift"] for record in again.machine.state.history for u in record.updates} == {1.0}
    check(again, log, last, lr, by_weights=normalise == "weights")
    assert findings(tmp_path, runner.id) == []


async def test_a_changed_base_is_found_and_named(tmp_path: Path) -> None:
    log = Log()
    spec = job(rule="fedbuff", pace={"updates": 9, "buffer": 3}, sites={"min": 3})
    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        await attend(served, sites, log)
        runner = await ended(await served.submit(spec, None, nothing()))
    state = runner.machine.state
    bases = {member.base for members in state.members.values() for member in members}
    for key in bases - {None}:
        path = tmp_path / "store" / "models" / str(key)
        whole = path.read_bytes()
        path.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
        assert [found.where for found in findings(tmp_path, runner.id)] == [f"model {key}"]
        path.write_bytes(whole)
    assert findings(tmp_path, runner.id) == []


async def test_rounds_of_differences_give_the_models_of_fedavg_bit_for_bit(tmp_path: Path) -> None:
    digests = []
    for number, merge in enumerate(({"kind": "mean"}, {"kind": "delta", "normalise": "weights"})):
        async with serving(tmp_path / str(number)) as served, AsyncExitStack() as sites:
            await attend(served, sites, Log())
            spec = job(rule="fedavg", pace={"rounds": 4}, merge=merge, sites={"min": 3})
            runner = await ended(await served.submit(spec, None, nothing()))
            digests.append([entry.digest for entry in runner.view().history])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 5
