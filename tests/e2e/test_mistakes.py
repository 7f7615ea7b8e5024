"""Typical mistakes of somebody new: each ends with a message that is true and an exit code that is true."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import Site, hansa

JOB = """
name: mine
app: app.py:app
rule: fedavg
pace: {rounds: 2}
sites: {min: 1, wait: 2}
data: {source: good.npz, sites: 2}
"""
START = ("learner", "start", "--site", "north", "--app", "app.py:app")


@dataclass(frozen=True)
class Mistake:
    """What somebody types, and what they must get."""

    words: Sequence[str]
    code: int
    says: Sequence[str]  # all of it stands in what is printed


ALONE = {  # no controller runs
    "a job file that is not there": Mistake(("run", "jbo.yaml"), 2, ("jbo.yaml", "No such file")),
    "a folder instead of a job file": Mistake(("run", "."), 2, ("Is a directory",)),
    "broken YAML": Mistake(("run", "broken.yaml"), 2, ("broken.yaml:2", "not valid YAML")),
    "a misspelt key": Mistake(("run", "job.yaml", "--set", "train.epoch=2"), 2, ("train.epoch", "'epochs'")),
    "a misspelt rule": Mistake(("run", "job.yaml", "--set", "rule=fedavgg"), 2, ("'fedavgg'", "'fedavg'")),
    "a word instead of a number": Mistake(
        ("run", "job.yaml", "--set", "pace.rounds=ten"), 2, ("pace.rounds", "'ten'")
    ),
    "a negative learning rate": Mistake(
        ("run", "job.yaml", "--set", "train.optimizer.lr=-1"), 2, ("train.optimizer.lr", "-1")
    ),
    "an app file that is not there": Mistake(("run", "job.yaml", "--set", "app=ap.py:app"), 2, ("ap.py",)),
    "an app under another name": Mistake(
        ("run", "job.yaml", "--set", "app=app.py:net"), 2, ("app.py", "'net'")
    ),
    "a network where a function is meant": Mistake(
        ("run", "job.yaml", "--set", "app=net.py:app"), 2, ("net.py:app: model= must be a function",)
    ),
    "a table with semicolons": Mistake(
        ("run", "job.yaml", "--set", "data.source=semi.csv"),
        2,
        ("semi.csv", "with commas between the columns"),
    ),
    "a misspelt data set": Mistake(
        ("run", "job.yaml", "--set", "data.source=digit"), 2, ("'digit'", "'digits'")
    ),
    "a data set that was not downloaded": Mistake(
        ("run", "job.yaml", "--set", "data.source=mnist"), 1, ("mnist", "HANSA_DATA")
    ),
    "labels that the app does not know": Mistake(
        ("run", "job.yaml", "--set", "data.source=labels.npz"), 1, ("label", "outside 0 … 1")
    ),
    "features of another shape": Mistake(
        ("run", "job.yaml", "--set", "data.source=shape.npz"), 1, ("shape", "5")
    ),
    "a job without data": Mistake(("run", "bare.yaml"), 2, ("data: is required by `hansa run`",)),
    "--set without a value": Mistake(("run", "job.yaml", "--set", "epochs"), 2, ("key=value",)),
    "no sites": Mistake(("run", "job.yaml", "--sites", "0"), 2, ("--sites", "0 is not in the range")),
    "an output folder that cannot be made": Mistake(
        ("run", "job.yaml", "--out", "job.yaml/out"), 2, ("job.yaml/out",)
    ),
    "no controller": Mistake(
        ("job", "submit", "job.yaml", "--controller", "127.0.0.1:9"),
        3,
        ("no controller answers at 127.0.0.1:9",),
    ),
    "a misspelt command": Mistake(("jobs", "list"), 2, ("'jobs'", "'job'")),
    "a missing argument": Mistake(("job", "show"), 2, ("Missing argument 'JOB'",)),
    "a data file that is not there": Mistake((*START, "--data", "god.npz"), 2, ("god.npz", "no such file")),
    "a data file of another format": Mistake((*START, "--data", "job.yaml"), 1, ("job.yaml",)),
    "a site whose features do not fit the app": Mistake((*START, "--data", "shape.npz"), 1, ("shape",)),
    "a site name with a space": Mistake(
        ("learner", "start", "--site", "north wing", "--data", "good.npz", "--app", "app.py:app"),
        2,
        ("'north wing'",),
    ),
    "a port for everybody without certificates": Mistake(
        ("controller", "start", "--listen", "0.0.0.0:7300"), 2, ("--tls", "--insecure")
    ),
    "a rule that does not exist": Mistake(("rules", "show", "fedprx"), 1, ("'fedprx'", "'fedprox'")),
}
TOGETHER = {  # a controller runs, and the learner of `north`
    "a job that does not exist": Mistake(("job", "show", "nothing"), 1, ("'nothing'", "hansa job list")),
    "an app that the sites do not allow": Mistake(
        ("job", "submit", "job.yaml", "--wait", "--set", "app=other.py:app"),
        1,
        ("other.py:app", "not allowed"),
    ),
    "more sites than there are": Mistake(
        ("job", "submit", "job.yaml", "--wait", "--set", "sites.min=3"), 1, ("1 of the 3 sites",)
    ),
    "a second learner of the same site": Mistake(
        (*START, "--data", "good.npz", "--state", "other"), 1, ("north",)
    ),
    "a version that was never made": Mistake(
        ("job", "model", "done", "--version", "99", "-o", "m.safetensors"), 1, ("version 99",)
    ),
    "a model into a folder that is not there": Mistake(
        ("job", "model", "done", "-o", "away/m.safetensors"), 2, ("away",)
    ),
    "cancelling what has ended": Mistake(("job", "cancel", "done"), 1, ("has already ended",)),
}


def prepare(folder: Path) -> None:
    """Lay out what the mistakes are made with."""
    (folder / "job.yaml").write_text(JOB)
    (folder / "bare.yaml").write_text("app: app.py:app\n")
    (folder / "broken.yaml").write_text("name: mine\n app: app.py:app\n")
    network = "from torch import nn\nfrom hansa import App\napp = App(model=nn.Linear(2, 2), classes=2)\n"
    (folder / "net.py").write_text(network)
    (folder / "semi.csv").write_text("age;height;y\n40;1.5;0\n50;1.6;1\n")
    rng = np.random.default_rng(5)
    y = np.arange(60) % 2
    np.savez(folder / "good.npz", x=rng.normal(size=(60, 2)).astype(np.float32), y=y)
    np.savez(folder / "shape.npz", x=rng.normal(size=(60, 5)).astype(np.float32), y=y)
    np.savez(folder / "labels.npz", x=rng.normal(size=(60, 2)).astype(np.float32), y=y + 1)


def check(scene: Site, mistake: Mistake) -> None:
    """Make a mistake and look at what is said."""
    done = hansa(
        *mistake.words, cwd=scene.folder, HANSA_DATA="", HANSA_CONTROLLER=scene.address or "127.0.0.1:9"
    )
    said = done.stdout + done.stderr
    assert done.returncode == mistake.code, said
    assert "Traceback" not in said
    for text in mistake.says:
        assert text in said
    assert len(done.stderr.splitlines()) <= 12, "a mistake is told in a few lines"


@pytest.mark.parametrize("name", ALONE)
def test_a_mistake_without_a_controller_is_explained_correctly(scene: Site, name: str) -> None:
    prepare(scene.folder)
    check(scene, ALONE[name])


def test_mistakes_with_a_running_federation_are_explained_correctly(scene: Site) -> None:
    prepare(scene.folder)
    scene.controller()
    scene.daemon("learner", "north", data="good.npz")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "name=done", "--set", "sites.wait=30")
    assert done.returncode == 0, done.stdout + done.stderr
    for mistake in TOGETHER.values():
        check(scene, mistake)
