"""What travels, over real gRPC with real learners and evaluators, and what never leaves a site."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import load_checkpoint, save_checkpoint
from hansa.common.models.frames import Layout, seal, views
from hansa.common.models.model import Manifest
from hansa.common.site.files import DiskFiles
from hansa.common.site.personal import PersonalFolder
from hansa.common.site.transfer import Fetcher, hand_in
from hansa.common.torch import networks
from hansa.common.ui.job.whole import completed
from hansa.common.values.errors import InvalidJob, Refused
from hansa.common.values.ids import JobId, ModelKey, TaskId, community_key
from hansa.common.values.results import Failure, UpdateFacts
from hansa.common.values.tasks import Task, Train
from hansa.common.values.views import JobView
from hansa.learner import daemon as learner_daemon
from tests.cutting_proxy import CuttingProxy
from tests.integration import personal_app
from tests.real_sites import attending, daemon
from tests.support import LightSite, ended, job, nothing, serving

FILE = Path(personal_app.__file__)
APP, PLAIN = f"{FILE}:app", f"{FILE}:plain"
SITES = ("a", "b", "c")
Arrays = dict[str, np.ndarray]
TRAIN = {"batch_size": 8, "optimizer": {"kind": "sgd", "lr": 0.05}}
ADAPTER = {"adapter.weight"}
NORM = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
HEAD = {"head.weight", "head.bias"}
FIXED = {name.replace("norm", "fixed") for name in NORM} | {"base.weight", "base.bias"}
COUNTS = {"norm.num_batches_tracked", "fixed.num_batches_tracked"}  # are copied
BASE = {"base.weight", "base.bias"}


class Update(NamedTuple):
    """What a learner handed in."""

    site: str
    arrays: Arrays
    facts: UpdateFacts


@dataclass
class Log:
    """What learners handed in and fetched."""

    updates: dict[TaskId, Update] = field(default_factory=dict)
    models: dict[ModelKey, Arrays] = field(default_factory=dict)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Write down what passes through the learners' transfers."""
    kept, fetch = Log(), Fetcher.fetch

    async def recorded(attendance: Any, task: TaskId, manifest: Manifest, payload: Any, facts: Any) -> Any:
        tensors = views(Layout(manifest.spec), payload)
        arrays = {name: array.copy() for name, array in tensors.items()}
        kept.updates[task] = Update(attendance.identity.site, arrays, facts)
        return await hand_in(attendance, task, manifest, payload, facts)

    async def fetched(self: Fetcher, key: ModelKey, *more: Any) -> Any:
        manifest, arrays = await fetch(self, key, *more)
        kept.models[key] = {name: array.copy() for name, array in arrays.items()}
        return manifest, arrays

    monkeypatch.setattr(learner_daemon, "hand_in", recorded)
    monkeypatch.setattr(Fetcher, "fetch", fetched)
    return kept


@asynccontextmanager
async def federation(
    folder: Path, app: str, proxied: bool = False
) -> AsyncIterator[tuple[AsyncClient, CuttingProxy]]:
    """Run a controller and three sites, which reach it through a proxy."""
    async with serving(folder / "controller") as served, AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(CuttingProxy(served.address).listening())
        proxy.record = bytearray() if proxied else None
        daemons = []
        for number, name in enumerate(SITES):
            (folder / name).write_text(str(number))
            daemons += [daemon(proxy.address, folder, app, name, role) for role in ("evaluator", "learner")]
        await stack.enter_async_context(attending(daemons))
        yield await stack.enter_async_context(AsyncClient(served.address)), proxy


async def run(client: AsyncClient, app: str, **words: Any) -> JobView:
    """Run a job to its end."""
    usual = {"app": app, "seed": 5, "sites": {"min": 3}, "validation": {"fraction": 0.25}, "train": TRAIN}
    view = (await client.submit(JobSpec.model_validate({**usual, "pace": {"rounds": 3}, **words}))).view
    async for _ in client.views(view.job):
        pass
    return await client.show(view.job)


async def models(client: AsyncClient, view: JobView, log: Log) -> list[Arrays]:
    """Return all community models of a job."""
    manifest, payload, _ = await client.model(view.job)
    earlier = [log.models[community_key(JobId(view.job), version)] for version in range(1, view.version)]
    return [*earlier, views(Layout(manifest.spec), payload)]


RULES: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {  # what travels, and what is personal
    "trainable": ({"layers": {"kind": "trainable"}}, ADAPTER | NORM | HEAD, set()),
    "matched": ({"layers": {"kind": "trainable", "match": ["adapter.*"]}}, ADAPTER, set()),
    "adapters": (
        {"layers": {"kind": "trainable", "personal": ["head.*"]}},
        ADAPTER | NORM,
        HEAD,
    ),
    "fedbn": (
        {"rule": "fedbn"},
        ADAPTER | HEAD | {"base.weight", "base.bias"},
        NORM | (FIXED - BASE),
    ),
    "fedper": ({"rule": "fedper"}, ADAPTER | NORM | FIXED, HEAD),
    "fedrep": ({"rule": "fedrep", "local": {"head_epochs": 2}}, ADAPTER | NORM | FIXED, HEAD),
}


@pytest.mark.parametrize("name", RULES)
async def test_every_version_is_the_mean_of_what_travels_and_of_nothing_else(
    tmp_path: Path, log: Log, name: str
) -> None:
    words, travelling, personal = RULES[name]
    async with federation(tmp_path, APP) as (client, _):
        view = await run(client, APP, **words)
        assert view.status == "completed", view.reason
        every = await models(client, view, log)
    assert all(set(update.arrays) == travelling for update in log.updates.values())
    assert all(set(arrays) == travelling for arrays in (*every, *log.models.values()))
    trained = {task: update for task, update in log.updates.items() if update.facts.n_train}
    tasks = sorted(trained, key=lambda task: int(task.rpartition("-")[2]))
    assert len(tasks) == 9
    for version, model in enumerate(every, 1):
        updates = [trained[task] for task in tasks[3 * version - 3 : 3 * version]]
        total = sum(update.facts.n_train for update in updates)
        for tensor in travelling - COUNTS:
            numbers = (each.arrays[tensor].astype(np.float64) * each.facts.n_train for each in updates)
            np.testing.assert_allclose(model[tensor], sum(numbers) / total, rtol=1e-6, atol=1e-6)
    for site in SITES:
        own = PersonalFolder(DiskFiles(tmp_path / f"{site}-personal")).committed(JobId(view.job))
        assert (set(own.arrays) if own else set()) == personal
        assert own is None or own.task == next(t for t in reversed(tasks) if trained[t].site == site)
    evaluated = view.history[-1].personal
    assert set(evaluated) == (set(SITES) if personal else set())
    assert all(trained[TaskId(task)].site == site for site, task in evaluated.items())


async def test_the_mean_is_bit_for_bit_that_of_the_same_tensors_when_the_whole_model_travels(
    tmp_path: Path, log: Log
) -> None:
    async with federation(tmp_path, PLAIN) as (client, _):
        part = await run(client, PLAIN, layers={"kind": "trainable"})
        parts = await models(client, part, log)
        whole = await run(client, PLAIN)
        wholes = await models(client, whole, log)
        manifest, payload, origin = await client.model(part.job)
        joined, _, _ = completed(manifest, payload, origin, PLAIN)
        assert joined.digest.hex() == whole.history[-1].digest
    for small, large in zip(parts, wholes, strict=True):
        assert set(large) == set(small) | BASE
        for name, array in small.items():
            assert array.tobytes() == large[name].tobytes(), name


async def test_uploads_are_as_large_as_what_travels(tmp_path: Path, log: Log) -> None:
    async with federation(tmp_path, PLAIN) as (client, proxy):
        before = proxy.sent
        view = await run(client, PLAIN, layers={"kind": "trainable"}, pace={"rounds": 4})
        sent = proxy.sent - before
    bytes_ = sum(array.nbytes for array in next(iter(log.updates.values())).arrays.values())
    for entry in view.history[1:]:
        assert entry.bytes_up <= 3 * (bytes_ * 1.01 + (64 << 10))
    assert sent <= 4 * 3 * (bytes_ * 1.01 + (64 << 10))


async def test_personal_tensors_are_never_on_the_wire(tmp_path: Path, log: Log) -> None:
    async with federation(tmp_path, APP, proxied=True) as (client, proxy):
        view = await run(client, APP, rule="fedper", weigh={"kind": "dvw"}, pace={"rounds": 2})
        assert view.status == "completed", view.reason
        assert proxy.record is not None
        sent = bytes(proxy.record)
    shared = next(iter(log.updates.values())).arrays["adapter.weight"].tobytes()
    assert shared[:32] in sent  # what travels would be found
    first = networks.build(personal_app.app, 5, "cpu").state_dict()["head.weight"].numpy().tobytes()
    folders = [PersonalFolder(DiskFiles(tmp_path / f"{site}-personal")) for site in SITES]
    owns = [folder.committed(JobId(view.job)) for folder in folders]
    secret = [first, *(own.arrays["head.weight"].tobytes() for own in owns if own)]
    assert len(set(secret)) == 4
    for numbers in secret:
        assert all(numbers[at : at + 16] not in sent for at in range(0, len(numbers), 16))


async def test_a_site_with_another_backbone_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    async def unfit(site: LightSite, task: Task) -> None:
        if isinstance(task.work, Train):
            await site.attendance.report_failure(task.id, Failure(reason="digest x, not y", unfit=True))
        else:
            await site.do(task)

    async with serving(tmp_path) as served, AsyncExitStack() as sites:
        for name in "ab":
            await sites.enter_async_context(LightSite(served.address, name).attending())
        await sites.enter_async_context(LightSite(served.address, "c", answer=unfit).attending())
        spec = job(layers={"kind": "trainable"}, pace={"rounds": 3}, sites={"min": 2})
        runner = await ended(await served.submit(spec, None, nothing()))
        view = runner.view()
        assert view.status == "completed", view.reason
        assert [set(entry.contributions) for entry in view.history[1:]] == [{"a", "b"}] * 3
        assert "learner c was left out: digest x, not y" in view.warnings


async def test_a_pattern_that_matches_nothing_fails_the_job_when_the_model_is_built(tmp_path: Path) -> None:
    async with federation(tmp_path, APP) as (client, _):
        view = await run(client, APP, layers={"kind": "personal", "match": ["haed.*"]})
        assert view.status == "failed"
        assert "layers.match: no tensor of the model matches 'haed.*'" in view.reason
        everything = await run(client, APP, layers={"kind": "personal", "match": ["[a-z]*"]})
        assert "no parameter of the model would travel" in everything.reason


async def test_a_first_model_from_a_file_leaves_what_is_personal_behind(tmp_path: Path, log: Log) -> None:
    network = networks.build(personal_app.app, 9, "cpu")
    spec = networks.describe(network)
    payload = networks.payload_of(network, spec)
    file = tmp_path / "whole.safetensors"
    save_checkpoint(file, seal(spec, payload), payload)
    async with federation(tmp_path, APP) as (client, _):
        with pytest.raises(InvalidJob, match=r"no tensor of the model matches 'haed\.\*'"):
            await run(client, APP, init=str(file), layers={"kind": "personal", "match": ["haed.*"]})
        view = await run(client, APP, init=str(file), rule="fedper", pace={"rounds": 1})
        assert view.status == "completed", view.reason
        first = log.models[community_key(JobId(view.job), 0)]
    assert set(first) == ADAPTER | NORM | FIXED
    _, whole = load_checkpoint(file)
    for name, array in first.items():
        assert array.tobytes() == views(Layout(spec), whole)[name].tobytes()


async def test_a_model_is_completed_only_by_an_app_with_the_same_backbone(tmp_path: Path) -> None:
    async with federation(tmp_path, PLAIN) as (client, _):
        view = await run(client, PLAIN, layers={"kind": "trainable"}, pace={"rounds": 1})
        manifest, payload, origin = await client.model(view.job)
    assert origin is not None
    other = origin.model_copy(update={"backbone": "0" * 64})
    with pytest.raises(Refused, match=f"have the digest {origin.backbone}, and those of the job have 0000"):
        completed(manifest, payload, other, PLAIN)
