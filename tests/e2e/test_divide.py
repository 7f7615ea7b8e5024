"""Divide-and-Conquer with real learners and evaluators: bytes on the wire, and other parts it goes with."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import ROOT, Site, hansa, write_data
from tests.published import write_cifar

APP = '''
"""Two classes in the plane, by a network with four layers, norms and dropout."""
from torch import nn
from hansa import App

def build():
    return nn.Sequential(
        nn.Linear(2, 300), nn.BatchNorm1d(300), nn.ReLU(),
        nn.Linear(300, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(300, 290), nn.ReLU(), nn.Linear(290, 2),
    )

app = App(model=build, classes=2)
'''


class Meter:
    """Passes connections on to a controller and counts the bytes in both directions."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.up = self.down = 0
        self._open: list[socket.socket] = [self._door]
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                inside, _ = self._door.accept()
                self._open.append(inside)
                outside = socket.create_connection(self._target)
                self._open.append(outside)
                for ends in ((inside, outside, "up"), (outside, inside, "down")):
                    self._threads.append(threading.Thread(target=self._pass, args=ends))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while some := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(some))
                target.sendall(some)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in self._open:
            each.close()


@contextmanager
def metered(scene: Site) -> Iterator[Meter]:
    """Let what connects from here on to the controller go through a meter."""
    direct = scene.address
    meter = Meter(direct)
    scene.address = meter.address
    try:
        yield meter
    finally:
        scene.address = direct
        meter.close()


@pytest.fixture
def layered(scene: Site) -> Site:
    (scene.folder / "app.py").write_text(APP)
    for number, name in enumerate("ab"):
        write_data(scene.folder / f"{name}.npz", number, rows=40)
    return scene


def _submit(scene: Site, name: str, *words: str) -> dict[str, object]:
    given = [word for each in (f"name={name}", *words) for word in ("--set", each)]
    done = scene.cli("job", "submit", "job.yaml", "--wait", *given)
    assert done.returncode == 0, done.stderr + done.stdout
    shown: dict[str, object] = scene.json("job", "show", name)
    return shown


def test_two_rounds_cost_half_of_the_bytes_of_fedavg_in_both_directions(layered: Site) -> None:
    layered.controller()
    with metered(layered) as meter:
        for site in "ab":
            layered.daemon("learner", site)

        def cost(name: str, *words: str) -> tuple[int, int]:
            """Return what four rounds more cost, up and down."""
            counts = []
            for rounds in (3, 7):
                before = meter.up, meter.down
                _submit(layered, f"{name}-{rounds}", f"pace.rounds={rounds}", "train.epochs=1", *words)
                counts.append((meter.up - before[0], meter.down - before[1]))
            return counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]

        plain = cost("fedavg", "rule=fedavg")
        divided = cost("divide", "rule=divide", "layers={prepass: 1, split: 2}")
    model = 4 * (3 * 300 + 4 * 300 + 301 * 300 + 4 * 300 + 301 * 290 + 291 * 2)
    assert min(plain) > 2 * 4 * model  # two sites, four rounds: the meter does count
    assert divided[0] <= 0.55 * plain[0], (divided, plain)
    assert divided[1] <= 0.55 * plain[1], (divided, plain)


def test_it_goes_with_proximal_terms_validation_weights_and_a_server_optimizer(layered: Site) -> None:
    layered.grace = 60.0
    layered.controller()
    for site in "ab":
        layered.daemon("learner", site)
        layered.daemon("evaluator", site)
    common = (
        "rule=divide",
        "pace.rounds=6",
        "train={epochs: 2, batch_size: 8, optimizer: {kind: adam, lr: 0.01}}",
    )
    fine = ["prepass", "prepass", "feature", "fine-tuning", "feature", "fine-tuning"]

    shown = _submit(
        layered,
        "proximal",
        *common,
        "layers={prepass: 2}",
        "weigh={kind: examples}",
        "local={kind: proximal, mu: 0.01}",
    )
    history = shown["history"]
    assert isinstance(history, list)
    assert [entry["phase"] for entry in history[1:]] == fine
    told = history[2]["diagnostics"]["layers"]
    assert told["split"] in (1, 2, 3)
    assert len(told["divergences"]["eq3"]) == 4
    assert history[-1]["metrics"]["accuracy"] > 0.8
    assert "prepass" in layered.cli("job", "show", "proximal").stdout

    shown = _submit(layered, "dvw", *common, "layers={prepass: 0, split: 2}", "weigh={kind: dvw}")
    history = shown["history"]
    assert isinstance(history, list)
    assert all(score["basis"] == "pooled" for score in history[-1]["scores"].values())
    assert all(len(score["found"]) == 2 for score in history[-1]["scores"].values())

    words = [
        "name=yogi",
        *common,
        "layers={prepass: 1}",
        "server={kind: yogi, lr: 0.01}",
    ]
    job = layered.json("job", "submit", "job.yaml", *(word for each in words for word in ("--set", each)))[
        "job"
    ]
    layered.until(lambda: layered.json("job", "show", job)["version"] >= 2)
    layered.kill("controller")
    layered.controller("controller-again", listen=layered.address)
    watched = layered.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    history = layered.json("job", "show", job)["history"]
    assert [entry["phase"] for entry in history[1:]] == ["prepass", *fine[2:], "feature"]
    for name in ("proximal", "dvw", "yogi"):
        verified = layered.cli("job", "verify", name, "--state", str(layered.folder / "state" / "controller"))
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("name", ["divide", "fedavg"])
def test_the_colours_example_runs_on_a_small_twin_of_its_data(tmp_path: Path, name: str) -> None:
    write_cifar(tmp_path / "cifar10" / "cifar-10-batches-bin", train=200, test=40)
    out = tmp_path / "out"
    short = (
        "pace.rounds=4",
        "layers.feature_epochs=1",
        "layers.prepass=" + ("2" if name == "divide" else "4"),
    )
    words = [word for each in short for word in ("--set", each)]
    job = f"examples/colours/{name}.yaml"
    environment = {"HANSA_DATA": str(tmp_path), "COLOURS_PICTURES": "60"}
    done = hansa("run", job, "--out", str(out), "--json", *words, cwd=ROOT, timeout=110, **environment)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    phases = ["prepass", "prepass", "feature", "fine-tuning"] if name == "divide" else ["prepass"] * 4
    assert [entry["phase"] for entry in report["history"][1:]] == phases
    assert all(entry["metrics"]["accuracy"] >= 0 for entry in report["history"][1:])
    found = report["history"][2]["diagnostics"]["layers"]["divergences"]
    assert {metric: len(values) for metric, values in found.items()} == {
        "eq3": 6,
        "cosine": 6,
        "relative_l2": 6,
    }
    assert np.isfinite([value for values in found.values() for value in values]).all()
