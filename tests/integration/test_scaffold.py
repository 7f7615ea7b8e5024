"""SCAFFOLD in whole jobs with real learners over real gRPC, against a few lines of numpy."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hansa.common.site.connection import Identity
from hansa.common.site.daemon import SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.values.ids import SiteName
from hansa.common.values.views import JobView
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from hansa.learner.daemon import Learner
from tests.redis_server import free_port
from tests.support import Served, ended, job, model_of, nothing, serving

APP = '''
"""Linear regression; a site's data follow from its number, and no two sites have the same optimum."""
from pathlib import Path
import numpy as np
from torch import nn
from hansa import App, Examples

def data(path: Path, split: str) -> Examples:
    number = int(path.read_text())
    chance = np.random.default_rng(number)
    x = chance.normal(size=(6 + 4 * number, 2)) * (1 + number)
    y = x @ np.array([1.0 - number, number / 2]) + number
    return Examples(x.astype(np.float32), y.astype(np.float32)[:, None])

app = App(model=lambda: nn.Linear(2, 1), task="regression", data=data)
'''
SITES = ("a", "b", "c")
RATE, STEPS = 0.02, 3
Pair = tuple[np.ndarray, np.ndarray]  # weight and bias, in float64


def gradient(number: int, model: Pair) -> Pair:
    """Return the gradient of a site's mean squared error."""
    exact = np.random.default_rng(number).normal(size=(6 + 4 * number, 2)) * (1 + number)
    y = (exact @ np.array([1.0 - number, number / 2]) + number).astype(np.float32)
    x = exact.astype(np.float32).astype(np.float64)
    apart = x @ model[0][0] + model[1][0] - y
    return (2 * (apart @ x) / len(x))[None, :], np.array([2 * apart.mean()])


class Scaffold:
    """The algorithm as the paper has it: option II, full batches, in float64."""

    def __init__(self, first: Pair, steps: int = STEPS) -> None:
        self.x, self.steps = first, steps
        self.c = tuple(np.zeros_like(part) for part in first)
        self.own = {site: tuple(np.zeros_like(part) for part in first) for site in SITES}

    def round(self, sites: list[str]) -> None:
        """Let sites train from the same model, and merge what they return."""
        trained, changes = [], []
        for site in sites:
            y = self.x
            for _ in range(self.steps):
                slopes = gradient(SITES.index(site), y)
                parts = zip(y, slopes, self.own[site], self.c, strict=True)
                y = tuple(p - RATE * (g - c_i + c) for p, g, c_i, c in parts)  # type: ignore[assignment]
            new = [
                c_i - c + (x - p) / (self.steps * RATE)
                for c_i, c, x, p in zip(self.own[site], self.c, self.x, y, strict=True)
            ]
            changes.append([n - c_i for n, c_i in zip(new, self.own[site], strict=True)])
            self.own[site] = tuple(new)
            trained.append(y)
        self.x = tuple(np.mean(parts, axis=0) for parts in zip(*trained, strict=True))
        added = [np.sum(parts, axis=0) / len(SITES) for parts in zip(*changes, strict=True)]
        self.c = tuple(c + more for c, more in zip(self.c, added, strict=True))


def pair(arrays: Mapping[str, np.ndarray], prefix: str = "") -> Pair:
    return arrays[f"{prefix}weight"].astype(np.float64), arrays[f"{prefix}bias"].astype(np.float64)


class Fleet:
    """Learners in this process, each with a state directory; any of them can be stopped and started."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.app = f"{folder / 'app.py'}:app"
        (folder / "app.py").write_text(APP)
        self.running: dict[str, asyncio.Task[None]] = {}

    async def start(self, site: str) -> None:
        data, state = self.folder / site, self.folder / f"{site}-state"
        data.write_text(str(SITES.index(site)))
        state.mkdir(exist_ok=True)
        identity = Identity(self.address, SiteName(site), "learner", None)
        options = SiteOptions(identity=identity, data=data, apps=(self.app,), state=state)
        ready = asyncio.Event()
        daemon = Learner(options, Shelf(options.apps, data, "train"))
        self.running[site] = asyncio.create_task(daemon.run(lambda _: ready.set()))
        await ready.wait()

    async def stop(self, site: str) -> None:
        task = self.running.pop(site)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def own(self, site: str, runner: JobRunner) -> Pair:
        """Return a site's control variate after its last update."""
        place = self.folder / f"{site}-state" / "memory" / runner.id
        last = runner.machine.state.receipts[SiteName(site)].task
        return pair(load_file(place / f"{last}.safetensors"), "scaffold/last/")


@asynccontextmanager
async def fleet_of(folder: Path, address: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder, address)
    try:
        for site in SITES:
            await fleet.start(site)
        yield fleet
    finally:
        for site in list(fleet.running):
            await fleet.stop(site)


async def submit(served: Served, fleet: Fleet, **changes: Any) -> JobRunner:
    base: dict[str, Any] = {
        "app": fleet.app,
        "rule": "scaffold",
        "pace": {"rounds": 6, "quorum": 1.0},
        "sites": {"min": 3, "wait": 60},
        "train": {"epochs": STEPS, "batch_size": 100, "optimizer": {"lr": RATE}},
        "validation": {"fraction": 0.0},
    }
    return await served.submit(job(**(base | changes)), None, nothing())


async def until(runner: JobRunner, reached: Callable[[JobRunner], bool]) -> None:
    while not reached(runner) and not runner.machine.ended:
        await runner.next_change().wait()


def epochs(view: JobView) -> list[Any]:
    return [entry.diagnostics["local"]["epoch"] for entry in view.history[1:]]


def check(folder: Path, runner: JobRunner) -> None:
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = [record for record in backends.journal.jobs() if record.id == runner.id]
        assert verify(backends, record)[2] == []


async def first_model(served: Served, runner: JobRunner) -> Pair:
    await until(runner, lambda runner: runner.machine.state.version == 0)
    return pair(model_of(served, runner))


def close(arrays: Mapping[str, np.ndarray], wanted: Scaffold) -> None:
    for one, other in zip(pair(arrays), wanted.x, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    for one, other in zip(pair(arrays, "control/"), wanted.c, strict=True):
        # One rounding of a model in float32 is divided by K·η.
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 / (STEPS * RATE))


async def test_models_and_control_variates_are_those_of_the_paper_through_restarts(tmp_path: Path) -> None:
    """A learner is restarted from its state directory, then the controller; neither begins a new epoch."""
    listen = f"127.0.0.1:{free_port()}"
    async with AsyncExitStack() as stack:
        serving_first = await stack.enter_async_context(AsyncExitStack())
        served = await serving_first.enter_async_context(serving(tmp_path / "controller", listen=listen))
        fleet = await stack.enter_async_context(fleet_of(tmp_path, listen))
        runner = await submit(served, fleet, pace={"rounds": 9, "quorum": 1.0})
        wanted = Scaffold(await first_model(served, runner))
        await until(runner, lambda runner: runner.machine.state.version >= 2)
        await fleet.stop("b")
        await fleet.start("b")
        await until(runner, lambda runner: runner.machine.state.version >= 4)
        await serving_first.aclose()
        async with serving(tmp_path / "controller", listen=listen) as again:
            resumed = await ended(again.jobs.runner(runner.id))
            view = resumed.view()
            assert view.status == "completed", view.reason
            final = model_of(again, resumed)
        for entry in view.history[1:]:
            assert sorted(entry.contributions) == list(SITES)
            wanted.round(list(SITES))
        close(final, wanted)
        assert epochs(view) == [1] * 9
        for part, control in enumerate(pair(final, "control/")):
            mean = np.mean([fleet.own(site, resumed)[part] for site in SITES], axis=0)
            np.testing.assert_allclose(mean, control, rtol=1e-5, atol=1e-5)
    check(tmp_path / "controller", resumed)


async def test_c_is_the_mean_of_all_control_variates_if_only_some_sites_take_part(tmp_path: Path) -> None:
    async with serving(tmp_path / "controller") as served, fleet_of(tmp_path, served.address) as fleet:
        sample = {"kind": "uniform", "fraction": 0.67}
        runner = await submit(served, fleet, sample=sample, pace={"rounds": 8})
        wanted = Scaffold(await first_model(served, runner))
        view = (await ended(runner)).view()
        assert view.status == "completed", view.reason
        taken = [sorted(entry.contributions) for entry in view.history[1:]]
        assert {len(sites) for sites in taken} == {2}
        assert {site for sites in taken for site in sites} == set(SITES)
        for sites in taken:
            wanted.round(sites)
        final = model_of(served, runner)
        close(final, wanted)
        for part, control in enumerate(pair(final, "control/")):
            mean = np.mean([fleet.own(site, runner)[part] for site in SITES], axis=0)
            np.testing.assert_allclose(mean, control, rtol=1e-5, atol=1e-5)
    check(tmp_path / "controller", runner)


async def test_the_first_round_is_fedavg_and_so_is_every_round_of_a_single_full_batch(tmp_path: Path) -> None:
    async with serving(tmp_path / "controller") as served, fleet_of(tmp_path, served.address) as fleet:
        models: dict[tuple[str, int], tuple[JobView, Mapping[str, np.ndarray]]] = {}
        for epochs_ in (STEPS, 1):
            train = {"epochs": epochs_, "batch_size": 100, "optimizer": {"lr": RATE}}
            for rule in ("scaffold", "fedavg"):
                runner = await ended(
                    await submit(served, fleet, rule=rule, weigh={"kind": "equal"}, train=train)
                )
                assert runner.view().status == "completed", runner.view().reason
                models[rule, epochs_] = runner.view(), model_of(served, runner)
        for epochs_ in (STEPS, 1):
            scaffold, fedavg = models["scaffold", epochs_], models["fedavg", epochs_]
            assert scaffold[0].history[1].digest == fedavg[0].history[1].digest
            assert scaffold[0].history[2].digest != fedavg[0].history[2].digest
        for one, other in zip(pair(scaffold[1]), pair(fedavg[1]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        apart = np.abs(models["scaffold", STEPS][1]["weight"] - models["fedavg", STEPS][1]["weight"])
        assert apart.max() > 1e-4, "with more steps SCAFFOLD and FedAvg differ"


@pytest.mark.parametrize("loss", ["disk", "site"])
async def test_a_new_epoch_begins_when_a_site_loses_its_memory_or_leaves(tmp_path: Path, loss: str) -> None:
    place = serving(tmp_path / "controller", grace=0.5)
    async with place as served, fleet_of(tmp_path, served.address) as fleet:
        least, quorum = (3, 1.0) if loss == "disk" else (2, 0.5)
        pace, sites = {"rounds": 30, "quorum": quorum}, {"min": least, "wait": 60}
        runner = await submit(served, fleet, pace=pace, sites=sites)
        await until(runner, lambda runner: runner.machine.state.version >= 3)
        await fleet.stop("b")
        if loss == "disk":
            shutil.rmtree(tmp_path / "b-state")
            await fleet.start("b")
        view = (await ended(runner)).view()
        assert view.status == "completed", view.reason
        assert epochs(view) == sorted(epochs(view))
        assert set(epochs(view)) == {1, 2}
        first = view.history[1 + epochs(view).index(2)]
        reason = "lost memory: b" if loss == "disk" else "left: b"
        assert first.diagnostics["local"]["began"] == reason
        assert first.warnings == [f"scaffold: epoch 2 begins with control variates of zero ({reason})"]
        assert sum(bool(entry.warnings) for entry in view.history) == 1
        final = model_of(served, runner)
        staying = SITES if loss == "disk" else ("a", "c")
        for part, control in enumerate(pair(final, "control/")):
            mean = np.mean([fleet.own(site, runner)[part] for site in staying], axis=0)
            np.testing.assert_allclose(mean, control, rtol=1e-5, atol=1e-4)
    check(tmp_path / "controller", runner)
