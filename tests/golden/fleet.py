"""Runs whole jobs: a controller with real gRPC on loopback and real learners and evaluators, in one process.

Jobs are submitted and watched as by an operator. One job runs at a time: sites in one process share the
seeded generators of numpy and PyTorch, from which version 0 is made.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.models.frames import Layout, views
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.site.daemon import SiteDaemon
from hansa.common.values.history import VersionView
from hansa.common.values.tasks import Init, Task, Train
from hansa.common.values.views import JobView
from tests.real_sites import attending, daemon
from tests.support import LightSite, serving

SITES = ("s1", "s2", "s3", "s4", "s5")
APPS = Path(__file__).parent / "apps"
PLAIN, TORCH, LIGHT = f"{APPS / 'plain.py'}:app", f"{APPS / 'pytorch.py'}:app", "light.py:app"
FIXED, FIXED_TORCH = f"{APPS / 'fixed.py'}:plain", f"{APPS / 'fixed.py'}:app"
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
    async with running(folder, app) as client:
        return {name: await _outcome(client, usual_job(app, job), numbers) for name, job in jobs.items()}


@asynccontextmanager
async def running(folder: Path, app: str) -> AsyncIterator[AsyncClient]:
    """Run a controller and five sites; yield an operator's client."""
    async with serving(folder / "controller") as served, AsyncExitStack() as sites:
        await (_light if app == LIGHT else _real(app))(served.address, folder, sites)
        yield await sites.enter_async_context(AsyncClient(served.address))


def usual_job(app: str, job: Job) -> JobSpec:
    """Return a job of five sites, which hold out a quarter of their data."""
    usual = {"app": app, "seed": 11, "sites": {"min": len(SITES)}, "validation": {"fraction": 0.25}}
    return JobSpec.model_validate({**usual, **job})


async def finished(client: AsyncClient, spec: JobSpec) -> JobView:
    """Submit a job; return its last view, with all versions."""
    submitted = (await client.submit(spec)).view
    last: JobView = submitted
    history: dict[int, VersionView] = {}
    async for last in client.views(submitted.job, detail=True):
        history |= {entry.version: entry for entry in last.history}
    return last.model_copy(update={"history": tuple(entry for _, entry in sorted(history.items()))})


async def _outcome(client: AsyncClient, spec: JobSpec, numbers: bool) -> Outcome:
    last = await finished(client, spec)
    outcome: Outcome = {"status": last.status, "versions": [version_of(entry) for entry in last.history]}
    if last.status != "completed":
        outcome["reason"] = last.reason
    if numbers:
        manifest, payload, _ = await client.model(last.job)
        outcome["model"] = {
            name: _rounded(array) for name, array in views(Layout(manifest.spec), payload).items()
        }
    return outcome


def _rounded(array: np.ndarray) -> list[float]:
    """Return some of a tensor's numbers, to six digits: they are compared with a tolerance."""
    return [float(f"{number:.6g}") for number in array.ravel()[:16].tolist()]


def version_of(entry: VersionView) -> dict[str, Any]:
    """Return what a golden file holds of a version."""
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
            (folder / name).write_text(str(number))
            daemons += [daemon(address, folder, app, name, role) for role in ("evaluator", "learner")]
        await sites.enter_async_context(attending(daemons))

    return start


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
