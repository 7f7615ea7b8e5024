"""Real processes for end-to-end tests: started through the command line, always ended."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.process.state import read_note
from hansa.common.run.nursery import Nursery
from tests.e2e.commands import run_command
from tests.redis_server import free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
APP = "app.py:app"
APP_TEXT = '''
"""Two classes in the plane; HANSA_TEST_PAUSE slows training down."""
import os, time
from torch import nn
from hansa import App

def pause(x):
    time.sleep(float(os.environ.get("HANSA_TEST_PAUSE", "0")))
    return x

def build():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

app = App(model=build, classes=2, transform=pause)
'''
# An app that trains by itself, and learns nothing.
OWN_APP = """
import numpy as np
from hansa import App
from hansa.common.values.results import Evaluation

def train(arrays, run):
    return arrays

def evaluate(arrays, examples):
    return Evaluation(n=1, loss_sum=1.0, confusion=((1, 0), (0, 0)))

app = App(model=lambda: {"w": np.zeros(2)}, classes=2, train=train, evaluate=evaluate)
"""
JOB_TEXT = """
name: plane
seed: 7
app: app.py:app
rule: fedavg
pace: {kind: sync, rounds: 3}
train: {epochs: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}
validation: {fraction: 0.2}
sites: {min: 2, wait: 30}
"""


def hansa(*arguments: str, cwd: Path, timeout: float = 90, **env: Any) -> "subprocess.CompletedProcess[str]":
    """Run a hansa command to its end."""
    environment = os.environ | {"HANSA_CONFIG": ""} | env
    return run_command(arguments, cwd, environment, timeout)


def write_data(path: Path, seed: int, rows: int = 60, changed: dict[str, Any] | None = None) -> None:
    """Write an .npz with two separable classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    x = (rng.normal(size=(rows, 2)) + 3 * y[:, None]).astype(np.float32)
    arrays: dict[str, Any] = {"x": x, "y": y} | (changed or {})
    np.savez(path, **arrays)


class Site:
    """The folder of one scene: app, job, data, and every process that was started in it."""

    grace = 2.0  # seconds until a lost site counts as gone

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nursery = Nursery()
        self.address = ""
        (folder / "app.py").write_text(APP_TEXT)
        (folder / "job.yaml").write_text(JOB_TEXT)
        for number, name in enumerate("abc"):
            write_data(folder / f"{name}.npz", number)

    def cli(self, *arguments: str, **env: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command against this scene's controller."""
        return hansa(*arguments, cwd=self.folder, HANSA_CONTROLLER=self.address, **env)

    def json(self, *arguments: str) -> Any:
        """Run a command with --json and parse what it prints."""
        done = self.cli(*arguments, "--json")
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    def controller(self, name: str = "controller", listen: str = "", store: str = "", **env: str) -> str:
        """Start a controller and return its address."""
        read, write = self.nursery.pipe()
        state = self.folder / "state" / "controller"
        arguments = [
            "controller",
            "start",
            "--listen",
            listen or f"127.0.0.1:{free_port()}",
            "--state",
            str(state),
            "--grace",
            str(self.grace),
        ]
        words = [*arguments, *(["--store", store] if store else [])]
        self.nursery.start(name, words, self.log(name), write, environment=env)
        write.close()
        with os.fdopen(os.dup(read.fileno())) as answers:
            ready = answers.readline().startswith("ready ")
        # A controller that a test kills at some point may be dead already; its sites wait for the next one.
        assert ready or "HANSA_KILL_AT" in env, self.log(name).read_text()
        read.close()
        note = read_note(state, "controller")  # empty if it was killed before it wrote the note
        self.address = note["address"] if ready else note.get("address", listen)
        return self.address

    def daemon(
        self,
        role: str,
        site: str,
        *more: str,
        name: str = "",
        pause: float = 0,
        data: str = "",
        state: str = "",
        **env: str,
    ) -> str:
        """Start a learner or evaluator; return the name of its process."""
        name = name or f"{role}-{site}"
        arguments = [
            role,
            "start",
            "--controller",
            self.address,
            "--site",
            site,
            "--app",
            APP,
            "--threads",
            "1",
        ]
        arguments += [
            "--data",
            str(self.folder / (data or f"{site}.npz")),
            "--state",
            str(self.folder / "state" / (state or name)),
        ]
        words = [*arguments, *more]
        self.log(name).touch()
        self.nursery.start(
            name,
            words,
            self.log(name),
            folder=self.folder,
            environment={"HANSA_DRAIN": "0", "HANSA_TEST_PAUSE": str(pause)} | env,
        )
        return name

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def kill(self, name: str) -> None:
        """End a process without warning."""
        process = self.nursery.processes[name]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    def until(self, what: Any, seconds: float = 30, otherwise: str = "it did not happen in time") -> Any:
        """Ask until the answer is true."""
        return until(what, seconds, otherwise)

    def close(self) -> None:
        names: Sequence[str] = list(self.nursery.processes)
        self.nursery.stop(names, patience=10)


def weights(entry: dict[str, Any]) -> dict[str, float]:
    """Return the weight of each site's update in a version of a report."""
    return {update["site"]: update["weight"] for update in entry["updates"]}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    try:
        yield made
    finally:
        made.close()
