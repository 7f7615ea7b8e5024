"""FedNova, q-FedAvg and power of choice over real gRPC: models recomputed from payloads, and a restart."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Probe, Task, Train
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.support import LightSite, ended, job, model_of, nothing, serving

ROUNDS, LR, MOMENTUM, Q = 6, 0.25, 0.5, 2.0
EXAMPLES = {"a": 3, "b": 11, "c": 5, "d": 40}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Payload:
    """What a site was given and what it returned."""

    task: Task
    start: Arrays
    returned: Arrays
    steps: int
    loss: float


@dataclass
class Payloads:
    """Sites that move every number by chance, and remember what they did; a task always gives the same."""

    seen: dict[TaskId, Payload] = field(default_factory=dict)
    probes: dict[int, dict[str, float]] = field(default_factory=dict)  # losses by round
    silent: set[str] = field(default_factory=set)  # sites that answer nothing from round 3 on

    async def answer(self, site: LightSite, task: Task) -> None:
        if site.name in self.silent and task.round >= 3:
            return
        chance = np.random.default_rng(crc32(task.id.rpartition("-")[2].encode() + site.name.encode()))
        loss = float(chance.uniform(0.1, 3))
        if isinstance(task.work, Probe):
            self.probes.setdefault(task.round + 1, {})[site.name] = loss
            site.value = loss
            await site.do(task)
        elif isinstance(task.work, Train):
            start = await site.fetch(task.work.model)
            moved = {
                name: np.asarray(array + chance.normal(0, 0.3, array.shape), array.dtype)
                for name, array in start.items()
            }
            steps = int(chance.integers(1, 9))
            self.seen[task.id] = Payload(task, start, moved, steps, loss)
            await site.send(task, moved, steps=steps, metrics={STARTING_LOSS: loss})
        else:
            await site.do(task)

    def of(self, version: int) -> dict[str, Payload]:
        """Return the payloads behind a version, by site."""
        before = [each for each in self.seen.values() if isinstance(each.task.work, Train)]
        return {p.task.site: p for p in before if p.task.work.version == version - 1}  # type: ignore[union-attr]


def nova(payloads: Mapping[str, Payload], name: str) -> np.ndarray:
    """Wang et al., equation 4: x + τ Σ p d, where d is the update divided by its steps."""
    total = sum(EXAMPLES[site] for site in payloads)
    x = next(iter(payloads.values())).start[name].astype(np.float64)
    change, tau = np.zeros_like(x), 0.0
    for site, payload in payloads.items():
        size = sum(sum(MOMENTUM**k for k in range(step)) for step in range(1, payload.steps + 1))
        change += EXAMPLES[site] / total * (payload.returned[name] - x) / size
        tau += EXAMPLES[site] / total * size
    return np.asarray(x + tau * change)


def fair(payloads: Mapping[str, Payload], name: str) -> np.ndarray:
    """Li et al., Algorithm 2."""
    x = next(iter(payloads.values())).start[name].astype(np.float64)
    delta, h = np.zeros_like(x), 0.0
    for payload in payloads.values():
        step = (x - payload.returned[name]) / LR
        delta += payload.loss**Q * step
        h += Q * payload.loss ** (Q - 1) * np.square(step).sum() + payload.loss**Q / LR
    return np.asarray(x - delta / h)


def average(payloads: Mapping[str, Payload], name: str) -> np.ndarray:
    """FedAvg."""
    total = sum(EXAMPLES[site] for site in payloads)
    weighted = [EXAMPLES[s] / total * p.returned[name].astype(np.float64) for s, p in payloads.items()]
    return np.asarray(sum(weighted))


Formula = Callable[[Mapping[str, Payload], str], np.ndarray]
SGD: dict[str, Any] = {"optimizer": {"lr": LR}}
RULES: dict[str, tuple[dict[str, Any], Formula]] = {
    "fednova": ({"train": {"optimizer": {"lr": LR, "momentum": MOMENTUM}}}, nova),
    "q-fedavg": ({"weigh": {"q": Q}, "server": {"q": Q}, "train": SGD}, fair),
    "fedavg": ({"sample": {"kind": "power-of-choice", "candidates": 3, "fraction": 0.5}}, average),
}


def spec_of(rule: str) -> JobSpec:
    return job(rule=rule, pace={"rounds": ROUNDS}, sites={"min": 4, "wait": 60}, **RULES[rule][0])


async def attend(address: str, sites: AsyncExitStack, payloads: Payloads) -> None:
    for name, examples in EXAMPLES.items():
        site = LightSite(address, name, examples=examples, answer=payloads.answer)
        await sites.enter_async_context(site.attending())


@pytest.mark.parametrize("rule", RULES)
async def test_every_model_is_what_the_paper_says_of_the_payloads_even_after_a_restart(
    tmp_path: Path, store: str, rule: str
) -> None:
    """Two sites answer nothing from round 3 on, until the controller has been restarted."""
    payloads, models = Payloads(silent={"b", "d"}), dict[int, Arrays]()
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        await attend(served.address, sites, payloads)
        runner = await served.submit(spec_of(rule), None, nothing())
        while runner.machine.state.version < 2 or not runner.machine.state.tasks:
            await runner.next_change().wait()
    payloads.silent = set()
    async with serving(tmp_path, store=store) as served, AsyncExitStack() as sites:
        again = served.jobs.runner(runner.id)
        assert again.machine.state.version < ROUNDS
        await attend(served.address, sites, payloads)
        await ended(again)
        assert again.machine.state.status == "completed", again.machine.state.reason
        models[ROUNDS] = model_of(served, again)
        history = again.view().history
    for payload in payloads.seen.values():
        assert isinstance(payload.task.work, Train)
        models[payload.task.work.version] = payload.start
    assert sorted(models) == list(range(ROUNDS + 1))
    formula = RULES[rule][1]
    for version in range(1, ROUNDS + 1):
        behind = payloads.of(version)
        assert set(behind) == set(history[version].contributions)
        wanted = formula(behind, "layer.weight")
        np.testing.assert_allclose(models[version]["layer.weight"], wanted, rtol=1e-6, atol=1e-6)
        if rule == "fedavg":
            losses = payloads.probes[version]
            assert len(losses) == 3
            assert set(behind) == set(sorted(losses, key=losses.__getitem__)[1:])
    with opened(store or f"disk:{tmp_path / 'store'}", tmp_path, lease=False) as backends:
        (record,) = backends.journal.jobs()
        machine, _, findings = verify(backends, record)
    assert findings == []
    assert machine.state.history[-1].prepared == history[-1].prepared
    assert (history[-1].prepared is None) == (rule == "fedavg")
