"""Methods of a package that knows `hansa.plugin` alone: DP-FedAvg, FedCM with memory, a buffer that fades.

Real processes train, every model is computed again from what passed between them, and learners are killed.
"""

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hansa.common.process.state import read_note
from hansa.common.values.tasks import Train
from tests.e2e.conftest import ROOT, hansa
from tests.recording_proxy import RecordingProxy, Transcript
from tests.redis_server import free_port
from tests.support import install

PACKAGES = ROOT / "tests" / "packages"
NAMES = ("private_averaging", "momenta")
APP = """
from torch import nn
from hansa import App

app = App(model=lambda: nn.Linear(2, 1), task="regression")
"""
JOB = """
name: linear
seed: 7
app: app.py:app
train: {epochs: 3, batch_size: 1000, optimizer: {kind: sgd, lr: 0.02}}
validation: {fraction: 0}
sites: {min: 3, wait: 120}
"""
RATE, STEPS = 0.02, 3
SITES = ("a", "b", "c")
TENSORS = ("weight", "bias")
Arrays = Mapping[str, np.ndarray]
Data = tuple[np.ndarray, np.ndarray]


def data_of(site: str) -> Data:
    """Return examples of a linear function that is another one at every site, and not as many."""
    number = SITES.index(site)
    chance = np.random.default_rng(number)
    x = chance.normal(size=(8 + 4 * number, 2)).astype(np.float32)
    return x, (x @ np.array([1.0 - number, 2.0]) + number).astype(np.float32)[:, None]


class Consortium:
    """A controller and three learners, each a process with the packages, and what passes between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "controller"
        self.learners: dict[str, subprocess.Popen[bytes]] = {}
        self.controller = f"127.0.0.1:{free_port()}"
        self.proxy = RecordingProxy(self.controller)
        path = os.pathsep.join((str(ROOT), str(folder / "packages")))
        self.equipped = {"PYTHONPATH": path, "HANSA_CONFIG": ""}
        for name in NAMES:
            install(folder / "packages", name, (PACKAGES / f"{name}.py").read_text())
        (folder / "app.py").write_text(APP)
        (folder / "job.yaml").write_text(JOB)
        for site in SITES:
            x, y = data_of(site)
            np.savez(folder / f"{site}.npz", x=x, y=y)

    def cli(self, *words: str, **env: Any) -> "subprocess.CompletedProcess[str]":
        return hansa(*words, cwd=self.folder, HANSA_CONTROLLER=self.controller, **env)

    def start_controller(self) -> None:
        words = ("--daemon", "--listen", self.controller, "--state", str(self.state), "--grace", "240")
        started = self.cli("controller", "start", *words, **self.equipped)
        assert started.returncode == 0, started.stderr

    def start(self, site: str, kill_at: str = "") -> None:
        """Start a learner, or its next life; it may be killed (-9) at a point."""
        words = [
            "learner",
            "start",
            "--controller",
            self.proxy.address,
            "--site",
            site,
            "--app",
            "app.py:app",
        ]
        words += ["--data", f"{site}.npz", "--state", f"learner-{site}", "--threads", "1"]
        env = os.environ | self.equipped | ({"HANSA_KILL_AT": kill_at} if kill_at else {})
        with (self.folder / f"{site}.log").open("ab") as log:
            command = [sys.executable, "-m", "hansa", *words]
            self.learners[site] = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)

    def lives(self, site: str, *points: str) -> None:
        """Let a learner that is stopped die at each point, one life after another, and then live."""
        for point in points:
            self.start(site, point)
            assert self.learners[site].wait(120) == -9, (self.folder / f"{site}.log").read_text()
        self.start(site)

    def stop(self, site: str) -> None:
        self.learners[site].terminate()
        self.learners[site].wait(60)

    def submit(self, *settings: str) -> str:
        words = [word for setting in settings for word in ("--set", setting)]
        done = self.cli("job", "submit", "job.yaml", *words, "--json")
        assert done.returncode == 0, done.stderr
        job: str = json.loads(done.stdout)["job"]
        return job

    def kill_controller(self) -> None:
        os.kill(read_note(self.state, "controller")["pid"], signal.SIGKILL)
        self.start_controller()

    def result(self, job: str) -> tuple[list[dict[str, Any]], Transcript, dict[int, Arrays]]:
        """Wait for a job's end; return its history, what sites sent, and its models by version."""
        watched = self.cli("job", "watch", job)
        assert watched.returncode == 0, watched.stdout + watched.stderr
        history = json.loads(self.cli("job", "show", job, "--json").stdout)["history"]
        transcript, models = Transcript(self.proxy.calls), dict[int, Arrays]()
        for task in transcript.tasks.values():
            # A task that was withdrawn when the job ended may never have fetched its model.
            if task.job == job and isinstance(task.work, Train) and task.work.model in transcript.models:
                models[task.work.version] = transcript.models[task.work.model]
        assert self.cli("job", "model", job, "-o", f"{job}.safetensors").returncode == 0
        last = load_file(self.folder / f"{job}.safetensors")
        models[len(history) - 1] = {**models.get(len(history) - 1, {}), **last}
        return history, transcript, models

    def check_verification(self, job: str, rule: str, package: str) -> None:
        """Verify a job where the package is installed; where it is not, it is named."""
        words = ("job", "verify", job, "--state", str(self.state))
        sound = self.cli(*words, **self.equipped)
        assert sound.returncode == 0, sound.stdout + sound.stderr
        assert "is sound and was recomputed" in sound.stdout
        missing = self.cli(*words)
        why = f"the job was run with {package} 1.0, which is not installed here"
        assert (missing.returncode, missing.stdout) == (2, "")
        assert missing.stderr == f"hansa: rule {rule}: {why}; install the plugin package and try again\n"


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    consortium = Consortium(tmp_path_factory.mktemp("consortium"))
    consortium.start_controller()
    with consortium.proxy.listening():
        try:
            for site in SITES:
                consortium.start(site)
            yield consortium
        finally:
            for site in consortium.learners:
                consortium.stop(site)
            assert consortium.cli("controller", "stop", "--state", str(consortium.state)).returncode == 0


def work_of(sent: Transcript, task: str) -> Train:
    work = sent.tasks[task].work
    assert isinstance(work, Train)
    return work


def weighted_sum(arrays: Mapping[str, Arrays], weights: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return Σ w·array over sites, for each tensor."""
    return {name: np.sum([weights[site] * arrays[site][name] for site in SITES], axis=0) for name in TENSORS}


def wide(arrays: Arrays, prefix: str = "") -> dict[str, np.ndarray]:
    return {name: arrays[f"{prefix}{name}"].astype(np.float64) for name in TENSORS}


def gradient(site: str, model: Arrays) -> dict[str, np.ndarray]:
    """Return the gradient of a site's mean squared error."""
    x, y = (array.astype(np.float64) for array in data_of(site))
    apart = x @ model["weight"].T + model["bias"] - y
    return {"weight": 2 * apart.T @ x / len(x), "bias": 2 * apart.mean(axis=0)}


def close(one: Arrays, other: Arrays, tolerance: float = 1e-6) -> None:
    for name in TENSORS:
        np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_dp_fedavg(consortium: Consortium) -> None:
    norm, noise, target, rate, expected = 0.5, 0.2, 0.8, 0.3, 4.0
    consortium.stop("b")  # the job waits for its next life
    job = consortium.submit(
        "rule=dp-fedavg",
        "pace.rounds=8",
        f"local={{norm: {norm}, noise: {noise}, target: {target}, rate: {rate}}}",
        f"server.expected={expected}",
    )
    consortium.lives("b", "update-kept:2", "task-offered:1")
    consortium.kill_controller()
    history, sent, models = consortium.result(job)
    noises = []
    for version, entry in enumerate(history[1:], 1):
        before, after, factors = wide(models[version - 1]), models[version], []
        total = {name: np.zeros_like(array) for name, array in before.items()}
        assert entry["prepared"] == 3 / expected
        assert entry["diagnostics"]["local"]["norm"] == pytest.approx(norm, rel=1e-12)
        assert sorted(update["site"] for update in entry["updates"]) == list(SITES)
        for update in entry["updates"]:
            returned = wide(sent.updates[update["task"]])
            for name in TENSORS:
                total[name] += returned[name] - before[name]
            (plugin,) = work_of(sent, update["task"]).plugins
            assert plugin.args == {"norm": pytest.approx(norm, rel=1e-12), "noise": noise}
            factors.append(update["metrics"]["clip_factor"])
            trained = before
            for _ in range(STEPS):
                slope = gradient(update["site"], trained)
                trained = {name: trained[name] - RATE * slope[name] for name in TENSORS}
            length = np.sqrt(sum(np.square(trained[name] - before[name]).sum() for name in TENSORS))
            factor = min(1.0, norm / length)
            noises.append(
                [
                    *((returned[n] - before[n] - factor * (trained[n] - before[n])) / norm for n in TENSORS),
                    np.array(factors[-1] - factor),
                ]
            )
        close(after, {name: before[name] + total[name] / expected for name in TENSORS})
        likely = np.clip(factors, -3 * noise, 1 + 3 * noise)
        norm *= np.exp(rate * (target - likely.mean()))
    numbers = np.array([np.concatenate([part.ravel() for part in each]) for each in noises])
    assert numbers.shape == (24, 4)  # of every task: a weight of two, a bias and the factor
    assert numbers.std() == pytest.approx(noise, rel=0.3)
    assert np.abs(numbers.mean()) < noise / 2
    apart = np.abs(numbers[:, None] - numbers[None]).max(axis=-1) + np.eye(24)
    assert apart.min() > noise / 100, "two tasks have the same noise"
    assert np.unique(np.round(numbers, 6)).size == numbers.size, "numbers of a noise repeat"
    repeated = {
        task: offers for task, offers in sent.offers.items() if len(offers) > 1 and task.startswith(job)
    }
    assert repeated, "no task was offered twice"
    for offers in repeated.values():
        assert len({manifest.digest for manifest, _ in offers}) == 1, (
            "a repeated task was sent another update"
        )
        assert len({facts.metrics["clip_factor"] for _, facts in offers}) == 1
    consortium.check_verification(job, "dp-fedavg", "private_averaging")


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_fedcm_with_a_memory_at_every_site(consortium: Consortium) -> None:
    alpha, beta = 0.3, 0.4
    consortium.stop("b")  # the job waits for its next life
    job = consortium.submit("rule=fedcm", "pace.rounds=8", f"local={{alpha: {alpha}, beta: {beta}}}")
    consortium.lives("b", "state-kept:2", "task-uploaded:1")
    history, sent, models = consortium.result(job)
    zeros = {name: np.zeros_like(array) for name, array in wide(models[0]).items()}
    direction, own = zeros, dict.fromkeys(SITES, zeros)
    examples = {site: len(data_of(site)[0]) for site in SITES}
    share = {site: count / sum(examples.values()) for site, count in examples.items()}
    for version, entry in enumerate(history[1:], 1):
        before = wide(models[version - 1])
        for update in entry["updates"]:
            site, returned, trained = update["site"], sent.updates[update["task"]], before
            for _ in range(STEPS):
                slope = gradient(site, trained)
                trained = {
                    n: trained[n] - RATE * (alpha * slope[n] + (1 - alpha) * direction[n]) for n in TENSORS
                }
            close(returned, trained)
            moved = {n: (before[n] - returned[n].astype(np.float64)) / (STEPS * RATE) for n in TENSORS}
            own[site] = {n: beta * own[site][n] + (1 - beta) * moved[n] for n in TENSORS}
            close(wide(returned, "direction/"), own[site])
            assert update["metrics"]["lost"] == 0
        updates = {update["site"]: wide(sent.updates[update["task"]]) for update in entry["updates"]}
        assert set(updates) == set(SITES)
        close(models[version], weighted_sum(updates, share))
        direction = weighted_sum(own, share)
        if version < len(history) - 1:  # an operator's model has no tensors beside it
            close(wide(models[version], "direction/"), direction)
    consortium.check_verification(job, "fedcm", "momenta")


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_buffer_whose_stale_updates_fade(consortium: Consortium) -> None:
    half_life = 1.5
    settings = ("pace={updates: 30, buffer: 4}", f"weigh.half_life={half_life}")
    job = consortium.submit("rule=fading-buffer", *settings)
    history, sent, models = consortium.result(job)
    counts = [len(entry["updates"]) for entry in history[1:]]
    assert counts == [4] * 7 + [2]
    checked, stalest = 0, 0
    for version, entry in enumerate(history[1:], 1):
        total = {name: np.zeros_like(array) for name, array in wide(models[0]).items()}
        for update in entry["updates"]:
            began = work_of(sent, update["task"]).version
            base, returned, stale = (
                wide(models[began]),
                wide(sent.updates[update["task"]]),
                version - 1 - began,
            )
            weight = 0.5 ** (stale / half_life)
            assert update["weight"] == pytest.approx(weight, rel=1e-12)
            for name in TENSORS:
                total[name] += weight * (returned[name] - base[name])
            stalest = max(stalest, stale)
        if version - 1 in models and version in models:
            before = wide(models[version - 1])
            close(models[version], {n: before[n] + total[n] / len(entry["updates"]) for n in TENSORS})
            checked += 1
    assert stalest > 0
    assert checked > 3
    consortium.check_verification(job, "fading-buffer", "momenta")


@pytest.mark.parametrize("name", NAMES)
def test_the_packages_import_nothing_of_hansa_but_the_public_module(name: str) -> None:
    tree = ast.parse((PACKAGES / f"{name}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert {module for module in imported if str(module).startswith("hansa")} == {"hansa.plugin"}


CHECKS = """
import sys
from hansa.plugin.testing import check, check_rule
from momenta import ClientMomentum, Fading, Momentum
from private_averaging import ClippedAndNoisy, FixedDivisor, Private

check(ClippedAndNoisy(noise=0.1))
check(Private(noise=0.1))
check(FixedDivisor(expected=2.5))
check(ClientMomentum(beta=0.9))
check(Momentum(alpha=0.5))
check(Fading(half_life=0.5))
for rule in ("dp-fedavg", "fedcm", "fading-buffer"):
    check_rule(rule)
assert "pytest" not in sys.modules
"""


def test_the_packages_keep_their_contracts_as_their_author_checks_them() -> None:
    path = os.pathsep.join((str(ROOT), str(PACKAGES)))
    command = [sys.executable, "-c", CHECKS]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
