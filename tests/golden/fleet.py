"""Runs whole jobs: a controller with real gRPC on loopback and real learners and evaluators, in one process.

Jobs are submitted and watched as by an operator. One job runs at a time: sites in one process share the
seeded generators of numpy and PyTorch, from which version 0 is made.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.job.spec import JobSpec
from hansa.common.models.frames import Layout, views
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.site.connection import Identity
from hansa.common.site.daemon import SiteDaemon, SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.ui.client import Client
from hansa.common.values.history import VersionView
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Init, Task, Train
from hansa.common.values.views import JobView
from hansa.evaluator.daemon import Evaluator
from hansa.learner.daemon import Learner
from tests.support import LightSite, serving

SITES = ("s1", "s2", "s3", "s4", "s5")
APPS = Path(__file__).parent / "apps"
PLAIN, TORCH, LIGHT = f"{APPS / 'plain.py'}:app", f"{APPS / 'pytorch.py'}:app", "light.py:app"
CHANNELS = 64
NORM = ModelSpec(
    (
        TensorInfo("one.weight", "float32", (3, 4), Role.PARAM, 0),
        TensorInfo("norm.weight", "float32", (CHANNELS,), Role.PARAM, 0, 1e-5),
        TensorInfo("norm.bias", "float64", (CHANNELS,), Role.PARAM, 0, 1e-5),
        TensorInfo("norm.running_mean", "float32", (CHANNELS,), Role.STAT, 0, 1e-5),
        TensorInfo("norm.running_var", "float32", (CHANNELS,), Role.STAT, 0, 1e-5),
        TensorInfo("norm.num_batches_tracked", "int64", (), Role.COUNT, 0, 1e-5),
    ),
    ("one",),
)
UNLIKE = ("s4", "s5")  # the other sites' models are alike
Job = Mapping[str, Any]
Outcome = dict[str, Any]
Fleet = Callable[[str, Path, AsyncExitStack], Awaitable[None]]


async def run(folder: Path, jobs: Mapping[str, Job], app: str, numbers: bool = False) -> dict[str, Outcome]:
    """Run jobs one after another with five sites; return digests and, if wanted, the last models' numbers."""
    outcomes: dict[str, Outcome] = {}
    async with serving(folder / "controller") as served, AsyncExitStack() as sites:
        await (_light if app == LIGHT else _real(app))(served.address, folder, sites)
        client = await sites.enter_async_context(Client(served.address))
        for name, job in jobs.items():
            usual = {"app": app, "seed": 11, "sites": {"min": len(SITES)}, "validation": {"fraction": 0.25}}
            outcomes[name] = await _outcome(client, JobSpec.model_validate({**usual, **job}), numbers)
    return outcomes


async def _outcome(client: Client, spec: JobSpec, numbers: bool) -> Outcome:
    submitted = await client.submit(spec)
    last: JobView = submitted
    history: dict[int, VersionView] = {}
    async for last in client.watch(submitted.job):
        history |= {entry.version: entry for entry in last.history}
    outcome: Outcome = {
        "status": last.status,
        "versions": [_version(entry) for _, entry in sorted(history.items())],
    }
    if last.status != "completed":
        outcome["reason"] = last.reason
    if numbers:
        manifest, payload = await client.model(last.job)
        outcome["model"] = {
            name: _rounded(array) for name, array in views(Layout(manifest.spec), payload).items()
        }
    return outcome


def _rounded(array: np.ndarray) -> list[float]:
    """Return some of a tensor's numbers, to six digits: they are compared with a tolerance."""
    return [float(f"{number:.6g}") for number in array.ravel()[:16].tolist()]


def _version(entry: VersionView) -> dict[str, Any]:
    version: dict[str, Any] = {"digest": entry.digest}
    if entry.version:
        version |= {
            "contributions": dict(sorted(entry.contributions.items())),
            "steps": dict(sorted(entry.steps.items())),
        }
    if entry.hops:
        version["hops"] = [list(hop.sites) for hop in entry.hops]
    return version


def _real(app: str) -> Fleet:
    async def start(address: str, folder: Path, sites: AsyncExitStack) -> None:
        daemons: list[SiteDaemon] = []
        for number, name in enumerate(SITES):
            data = folder / name
            data.write_text(str(number))
            for role in ("evaluator", "learner"):
                state = folder / f"{name}-{role}"
                state.mkdir()
                identity = Identity(address, SiteName(name), role, None)
                split = "train" if role == "learner" else "validation"
                options = SiteOptions(identity=identity, data=data, apps=(app,), state=state, split=split)
                shelf = Shelf(options.apps, data, "train")
                daemons.append(Learner(options, shelf) if role == "learner" else Evaluator(options, shelf))
        await sites.enter_async_context(_attending(daemons))

    return start


@asynccontextmanager
async def _attending(daemons: Sequence[SiteDaemon]) -> AsyncIterator[None]:
    """Keep daemons connected until the block ends."""
    ready = {daemon: asyncio.Event() for daemon in daemons}
    running = [asyncio.create_task(daemon.run(partial(_set, ready[daemon]))) for daemon in daemons]
    here = asyncio.create_task(_all(ready.values()))
    try:
        await asyncio.wait((*running, here), return_when=asyncio.FIRST_COMPLETED)
        for ended in running:
            if ended.done():
                ended.result()
        yield
    finally:
        for task in (here, *running):
            task.cancel()
        await asyncio.gather(here, *running, return_exceptions=True)


def _set(event: asyncio.Event, text: str) -> None:
    event.set()


async def _all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _light(address: str, folder: Path, sites: AsyncExitStack) -> None:
    """Start sites with simple arithmetic for training, for models that the app of arrays cannot describe."""
    for number, name in enumerate(SITES):
        site = LightSite(address, name, app=LIGHT, examples=10 + 3 * number, spec=NORM, answer=_answer)
        await sites.enter_async_context(site.attending())


async def _answer(site: LightSite, task: Task) -> None:
    """Send what a site of one of two groups might train: the group's shift and noise of its own."""
    if isinstance(task.work, Init):
        first = {info.name: np.ones(info.shape, info.dtype) for info in NORM.tensors}
        await site.send(task, first)
    elif isinstance(task.work, Train):
        arrays = await site.fetch(task.work.model)
        group, own = (
            np.random.default_rng(site.name in UNLIKE),
            np.random.default_rng([int(site.name[1:]), task.round]),
        )
        moved = {
            name: group.random(array.shape) * 4 + own.random(array.shape) for name, array in arrays.items()
        }
        await site.send(
            task, {name: (array / 2 + moved[name]).astype(array.dtype) for name, array in arrays.items()}
        )
