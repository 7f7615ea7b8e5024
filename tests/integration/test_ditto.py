"""Ditto in whole jobs with real learners and evaluators over real gRPC, against a few lines of numpy."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from hansa.common.cli import hansa
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.models.frames import Layout, views
from hansa.common.site.daemon import SiteDaemon
from hansa.common.site.files import DiskFiles
from hansa.common.site.personal import Personal, PersonalFolder
from hansa.common.site.shelf import Shelf
from hansa.common.values.ids import JobId
from hansa.common.values.views import JobView
from hansa.evaluator.daemon import Evaluator
from tests.cutting_proxy import CuttingProxy
from tests.integration import personal_app
from tests.real_sites import attending, daemon
from tests.support import serving

SITES = ("a", "b", "c")
APP = '''
"""Linear regression; a site's data follow from its number, and no two sites have the same optimum."""
from pathlib import Path
import numpy as np
import torch
from torch import nn
from hansa import App, Examples

class Line(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        with torch.no_grad():
            self.weight.copy_(torch.tensor([[0.5, -0.25]]))
            self.bias.fill_(0.125)

def data(path: Path, split: str) -> Examples:
    number = int(path.read_text())
    chance = np.random.default_rng(number)
    x = chance.normal(size=(6 + 4 * number, 2)) * (1 + number)
    y = x @ np.array([1.0 - number, number / 2]) + number
    return Examples(x.astype(np.float32), y.astype(np.float32)[:, None])

app = App(model=Line, task="regression", data=data)
'''
NETWORK = f"{Path(personal_app.__file__)}:app"
RATE, EPOCHS, ROUNDS = 0.02, 3, 4
Pair = tuple[np.ndarray, float]  # weight and bias, in float64
FIRST: Pair = (np.array([0.5, -0.25]), 0.125)


def examples(number: int) -> tuple[np.ndarray, np.ndarray]:
    exact = np.random.default_rng(number).normal(size=(6 + 4 * number, 2)) * (1 + number)
    y = (exact @ np.array([1.0 - number, number / 2]) + number).astype(np.float32)
    return exact.astype(np.float32).astype(np.float64), y.astype(np.float64)


def trained(number: int, model: Pair, epochs: int, lam: float = 0.0, anchor: Pair = FIRST) -> Pair:
    """Return a model after steps with full batches: g + λ·(v − x)."""
    x, y = examples(number)
    weight, bias = model
    for _ in range(epochs):
        apart = x @ weight + bias - y
        slope = 2 * (apart @ x) / len(x) + lam * (weight - anchor[0])
        weight, bias = weight - RATE * slope, bias - RATE * (2 * apart.mean() + lam * (bias - anchor[1]))
    return weight, bias


def by_the_book(rounds: list[list[str]], lam: float, epochs: int) -> tuple[list[Pair], list[dict[str, Pair]]]:
    """Return the community models and the sites' own models of all versions; sites train by rounds."""
    xs: list[Pair] = [FIRST]
    vs: list[dict[str, Pair]] = [{}]
    for sites in rounds:
        x, numbers = xs[-1], [SITES.index(site) for site in sites]
        updates = [trained(number, x, EPOCHS) for number in numbers]
        own = {s: trained(n, vs[-1].get(s, x), epochs, lam, x) for n, s in zip(numbers, sites, strict=True)}
        sizes = [6 + 4 * number for number in numbers]
        weight, bias = (np.average([u[part] for u in updates], axis=0, weights=sizes) for part in (0, 1))
        xs.append((weight, float(bias)))
        vs.append(vs[-1] | own)
    return xs, vs


def pooled_loss(models: list[Pair]) -> float:
    """Return the mean squared error of a model of each site on its examples, over all examples."""
    apart = [m[0] @ x.T + m[1] - y for m, (x, y) in zip(models, map(examples, range(3)), strict=True)]
    return float(np.square(np.concatenate(apart)).mean())


def close(arrays: Mapping[str, np.ndarray], model: Pair) -> None:
    numbers = np.append(arrays["weight"], arrays["bias"])
    np.testing.assert_allclose(numbers, np.append(*model), rtol=1e-6, atol=1e-6)


@asynccontextmanager
async def federation(folder: Path, app: str) -> AsyncIterator[tuple[AsyncClient, CuttingProxy]]:
    """Run a controller and three sites with evaluators, which reach it through a proxy."""
    async with serving(folder / "controller") as served, AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(CuttingProxy(served.address).listening())
        proxy.record = bytearray()
        daemons: list[SiteDaemon] = []
        for number, name in enumerate(SITES):
            (folder / name).write_text(str(number))
            evaluator = daemon(proxy.address, folder, app, name, "evaluator").options
            shelf = Shelf(evaluator.apps, evaluator.data, "test")
            daemons += [Evaluator(replace(evaluator, split="test"), shelf)]  # on all data of the site
            daemons += [daemon(proxy.address, folder, app, name, "learner")]
        await stack.enter_async_context(attending(daemons))
        yield await stack.enter_async_context(AsyncClient(served.address)), proxy


async def run(client: AsyncClient, app: str, **words: Any) -> JobView:
    """Run a job to its end."""
    usual: dict[str, Any] = {
        "app": app,
        "rule": "ditto",
        "seed": 5,
        "sites": {"min": 3},
        "pace": {"rounds": ROUNDS},
        "validation": {"fraction": 0.25},
        "train": {"epochs": 2, "batch_size": 8, "optimizer": {"lr": 0.05}},
    }
    view = (await client.submit(JobSpec.model_validate(usual | words))).view
    async for _ in client.views(view.job):
        pass
    view = await client.show(view.job)
    assert view.status == "completed", view.reason
    return view


def own_model(folder: Path, site: str, view: JobView) -> Personal:
    own = PersonalFolder(DiskFiles(folder / f"{site}-personal")).committed(JobId(view.job))
    assert own is not None
    return own


@pytest.mark.parametrize(("lam", "epochs", "fraction"), [(0.0, 3, 1.0), (0.5, 3, 0.4), (2.0, 1, 1.0)])
async def test_both_models_and_their_losses_are_those_of_the_paper(
    tmp_path: Path, lam: float, epochs: int, fraction: float
) -> None:
    (tmp_path / "app.py").write_text(APP)
    app = f"{tmp_path / 'app.py'}:app"
    train = {"epochs": EPOCHS, "batch_size": 100, "optimizer": {"lr": RATE}}
    words: dict[str, Any] = {"train": train, "validation": {"fraction": 0.0}}
    words["sample"] = {"kind": "uniform", "fraction": fraction}
    async with federation(tmp_path, app) as (client, _):
        view = await run(client, app, local={"lam": lam, "epochs": epochs}, **words)
        manifest, payload, _ = await client.model(view.job)
        model = views(Layout(manifest.spec), payload)
    rounds = [sorted(entry.contributions) for entry in view.history[1:]]
    assert {len(sites) for sites in rounds} == {3 if fraction == 1 else 1}
    xs, vs = by_the_book(rounds, lam, epochs)
    close(model, xs[-1])
    for site, own_numbers in vs[-1].items():
        close(own_model(tmp_path, site, view).arrays, own_numbers)
    evaluated = [entry for entry in view.history if entry.metrics]
    assert evaluated[-1].version == ROUNDS
    made_in = {update.task: entry.version for entry in view.history for update in entry.updates}
    for entry in evaluated:
        x = xs[entry.version]
        own = [vs[made_in[entry.personal[s]]][s] if s in entry.personal else x for s in SITES]
        assert entry.metrics["loss"] == pytest.approx(pooled_loss([x] * 3), rel=1e-4)
        assert entry.metrics["loss_personal"] == pytest.approx(pooled_loss(own), rel=1e-4)


async def test_community_models_are_those_of_fedavg_bit_for_bit_for_every_strength(tmp_path: Path) -> None:
    async with federation(tmp_path, NETWORK) as (client, _):
        fedavg = await run(client, NETWORK, rule="fedavg")
        digests = [entry.digest for entry in fedavg.history]
        dittos = [await run(client, NETWORK, local={"lam": lam}) for lam in (0.0, 0.1, 3.0)]
    assert len(set(digests)) == ROUNDS + 1
    assert [[entry.digest for entry in view.history] for view in dittos] == [digests] * 3
    owns = {own_model(tmp_path, s, view).arrays["head.weight"].tobytes() for s in SITES for view in dittos}
    assert len(owns) == 9


async def test_own_models_are_evaluated_beside_the_communitys(tmp_path: Path) -> None:
    async with federation(tmp_path, NETWORK) as (client, _):
        keep = {"best": {"metric": "accuracy_personal"}}
        view = await run(client, NETWORK, local={"lam": 0.5}, evaluate={"kind": "by-site"}, keep=keep)
    last = view.history[-1]
    found = [entry.validation.metrics["accuracy_personal"] for entry in view.history[1:] if entry.validation]
    assert len(found) == ROUNDS
    assert view.best == 1 + max(range(ROUNDS), key=lambda number: found[number] or 0)
    names = {f"{name}{end}" for name in ("loss", "accuracy", "weighted_f1") for end in ("", "_personal")}
    assert set(last.metrics) == names | {f"{name}_by_site" for name in names}
    assert last.metrics["loss_personal"] != last.metrics["loss"]
    assert set(last.personal) == set(SITES)
    assert all(not update.metrics for update in last.updates)


@pytest.mark.parametrize("kind", ["trainable", "parameters"])
async def test_it_goes_with_other_ways_to_travel(tmp_path: Path, kind: str) -> None:
    """With a frozen backbone v is what travels; with statistics that stay, v has statistics of its own."""
    async with federation(tmp_path, NETWORK) as (client, _):
        fedavg = await run(client, NETWORK, rule="fedavg", layers={"kind": kind})
        view = await run(client, NETWORK, layers={"kind": kind})
        manifest, _, _ = await client.model(view.job)
    assert [entry.digest for entry in view.history] == [entry.digest for entry in fedavg.history]
    assert "accuracy_personal" in view.history[-1].metrics
    for site in SITES:
        own = own_model(tmp_path, site, view).arrays
        assert set(own) == set(manifest.spec.names)
        assert ("base.weight" in own) is (kind == "parameters")


async def test_own_models_stay_at_the_sites_where_a_command_writes_them(tmp_path: Path) -> None:
    async with federation(tmp_path, NETWORK) as (client, proxy):
        view = await run(client, NETWORK)
        assert proxy.record is not None
        sent = bytes(proxy.record)
        manifest, payload, _ = await client.model(view.job)
    trained = views(Layout(manifest.spec), payload)["adapter.weight"].tobytes()
    assert len(trained) == 256
    for site in SITES:
        own = own_model(tmp_path, site, view)
        numbers = own.arrays["adapter.weight"].tobytes()
        assert all(numbers[at : at + 16] not in sent for at in range(0, len(numbers), 16))
        file, folder = tmp_path / f"{site}.safetensors", tmp_path / f"{site}-personal"
        words = ["learner", "model", view.job, "--site", site, "--personal", str(folder), "-o", str(file)]
        result = CliRunner().invoke(hansa, [*words, "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["task"] == own.task
        written = load_file(file)
        assert set(written) == set(manifest.spec.names)
        assert all(written[name].tobytes() == own.arrays[name].tobytes() for name in written)
