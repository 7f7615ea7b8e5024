"""What is left of a job: results that describe themselves, and warnings of sites that contributed little."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file

import hansa as package
from hansa.common.models.checkpoints import load_checkpoint, read_origin
from tests.e2e.conftest import ROOT, Site, hansa
from tests.e2e.test_run import DIGITS, processes_below, start_run

FAILING_APP = """
import os
from torch import nn
from hansa import App

def fail(x):
    if os.environ.get("HANSA_TEST_FAIL"):
        raise RuntimeError("no such column")
    return x

app = App(model=lambda: nn.Linear(2, 2), classes=2, transform=fail)
"""
PICKY_APP = """
import numpy as np
import torch
from hansa import App
from hansa.common.values.results import Evaluation

def train(arrays, run):
    if run.examples.x.max() > 9:
        raise RuntimeError("too large a number")
    return {"w": arrays["w"] + torch.get_num_threads()}

def evaluate(arrays, examples):
    return Evaluation(n=1, loss_sum=torch.get_num_threads(), confusion=((1, 0), (0, 0)))

app = App(model=lambda: {"w": np.zeros(2)}, classes=2, train=train, evaluate=evaluate)
"""
PICKY_JOB = """
name: picky
app: app.py:app
pace: {rounds: 3}
data: {source: all.npz, partition: {by: hospital}}
"""


# The resolved job.


@pytest.mark.parametrize(
    "options",
    [
        ("--sites", "10", "--set", "train.proximal=0.1", "--set", "train.optimizer={kind: adam, lr: 0.01}"),
        ("--set", "rule=fedadam", "--set", "seed=3", "--set", "sample={kind: uniform, fraction: 0.5}"),
        ("--central",),
    ],
    ids=["proximal", "fedadam", "central"],
)
@pytest.mark.slow
def test_a_run_of_the_resolved_job_gives_the_same_model_bit_for_bit(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    done = hansa("run", DIGITS, "--out", str(one), "--set", "pace.rounds=2", *options, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    file = one / "job.resolved.yaml"
    again = hansa("run", str(file), "--out", str(two), cwd=tmp_path, timeout=120)  # from anywhere
    assert again.returncode == 0, again.stderr
    digests = [load_checkpoint(folder / "model.safetensors")[0].digest for folder in (one, two)]
    assert digests[0] == digests[1]
    first, second = (yaml.safe_load((folder / "job.resolved.yaml").read_text()) for folder in (one, two))
    assert first == second


def test_report_and_model_of_a_run_say_what_they_are_and_verify_finds_the_receipt(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--out", str(out), "--set", "pace.rounds=2", "--set", "seed=5")
    assert hansa("run", DIGITS, *words, cwd=ROOT, timeout=120).returncode == 0
    report = json.loads((out / "report.json").read_text())
    told = report["resolved"]
    assert report["data"] == yaml.safe_load((out / "job.resolved.yaml").read_text())["data"]
    assert (told["job"]["seed"], told["job"]["rule"], told["job"]["app"]) == (
        5,
        "fedavg",
        "examples/digits/app.py:app",
    )
    assert told["job"]["train"]["optimizer"] == {
        "kind": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "amsgrad": False,
    }
    assert told["made_with"]["hansa"] == package.__version__
    assert told["made_with"]["plugins"]["merge"] == {
        "kind": "mean",
        "package": "hansa",
        "version": package.__version__,
    }
    with safe_open(out / "model.safetensors", "numpy") as held:
        about = json.loads(held.metadata()["hansa.origin"])
    last = report["history"][-1]
    assert (about["job"], about["name"], about["version"]) == (report["job"], "digits", 2)
    assert (about["digest"], about["receipt"]) == (last["digest"], last["receipt"])
    assert about["resolved"] == told
    state = ("--state", str(out / "controller"))
    sound = hansa(
        "job", "verify", report["job"], *state, "--model", str(out / "model.safetensors"), cwd=tmp_path
    )
    assert sound.returncode == 0, sound.stderr
    assert f"version 2 of the job, as receipt {last['receipt']} names it" in sound.stdout


# Sites that contribute nothing.


def test_a_run_names_a_site_that_failed_in_every_round_and_the_number_of_threads(tmp_path: Path) -> None:
    x, y = np.zeros((30, 2)), np.arange(30) % 2
    x[20:] = 10
    hospital = np.repeat(["north", "south", "broken"], 10)
    np.savez(tmp_path / "all.npz", x=x, y=y, hospital=hospital)
    (tmp_path / "app.py").write_text(PICKY_APP)
    (tmp_path / "job.yaml").write_text(PICKY_JOB)
    done = hansa("run", "job.yaml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hansa: warning: ")]
    assert line.startswith(
        "hansa: warning: broken contributed no update (3 were asked for): 3 failures, the last: "
    )
    assert "too large a number" in line
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["warnings"] == [line.removeprefix("hansa: warning: ")]
    (shortfall,) = report["shortfalls"]
    assert (shortfall["site"], shortfall["contributed"], shortfall["asked"]) == ("broken", 0, 3)
    short = hansa("run", "job.yaml", "--out", "json", "--json", "--threads", "2", cwd=tmp_path)
    assert short.returncode == 0
    assert json.loads(short.stdout)["warnings"] == report["warnings"]
    for out, threads in (("out", 1), ("json", 2)):
        report = json.loads((tmp_path / out / "report.json").read_text())
        job = yaml.safe_load((tmp_path / out / "job.resolved.yaml").read_text())
        assert report["threads"] == job["made_with"]["threads"] == threads
        assert load_file(tmp_path / out / "model.safetensors")["w"].tolist() == [3 * threads] * 2
        assert report["metrics"]["loss"] == threads


def test_watch_show_and_wait_name_a_failing_site_and_say_once_that_no_site_evaluates(scene: Site) -> None:
    (scene.folder / "app.py").write_text(FAILING_APP)
    scene.controller()
    for site in "ab":
        scene.daemon("learner", site)
    scene.daemon("learner", "c", HANSA_TEST_FAIL="1")
    waited = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=3")
    assert waited.returncode == 0, waited.stderr
    named = "c contributed no update (3 were asked for): 3 failures, the last: "
    assert waited.stderr.startswith(f"hansa: warning: {named}")
    assert waited.stdout.count("no evaluator is connected: no metrics") == 1
    watched = scene.cli("job", "watch", "plane")
    assert watched.returncode == 0
    assert f"hansa: warning: {named}" in watched.stderr
    (warning,) = scene.json("job", "watch", "plane")["warnings"]
    assert warning.startswith(named)
    scene.kill("controller")
    scene.controller("again")  # the account is in the journal
    shown = scene.cli("job", "show", "plane").stdout
    assert shown.splitlines()[-1] == f"warning: {warning}"
    assert shown.count("no evaluator is connected: no metrics") == 1
    told = scene.json("job", "show", "plane")
    assert told["warnings"] == [warning]
    assert told["resolved"]["job"]["sites"]["min"] == 3
    model = scene.folder / "m.safetensors"
    assert scene.cli("job", "model", "plane", "-o", str(model)).returncode == 0
    origin = read_origin(model)
    assert origin is not None
    assert (origin.job, origin.version, origin.receipt) == (told["job"], 3, told["history"][-1]["receipt"])


# Ctrl-C.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_its_report_and_its_last_model(
    tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    run = start_run(out, "--set", "pace.rounds=100000")
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("round 2/"):
            break
    os.killpg(run.pid, number) if number is signal.SIGINT else run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    report = json.loads((out / "report.json").read_text())
    assert report["status"] == "cancelled"
    assert report["version"] >= 2
    assert report["warnings"] == []
    origin = read_origin(out / "model.safetensors")
    assert origin is not None
    assert (origin.job, origin.version) == (report["job"], report["version"])
    assert load_checkpoint(out / "model.safetensors")[0].digest.hex() == origin.digest
    assert yaml.safe_load((out / "job.resolved.yaml").read_text())["pace"]["rounds"] == 100000
    assert (
        f"its last model (version {origin.version}), the job as it was run\nand its state are in {out}"
        in said
    )
    assert "Traceback" not in said
    assert processes_below(out) == []


def test_a_second_ctrl_c_does_not_wait_for_a_controller_that_hangs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start_run(out, "--set", "pace.rounds=100000")
    assert run.stdout is not None
    assert run.stderr is not None
    for line in run.stdout:
        if line.startswith("round 2/"):
            break
    controller = json.loads((out / "controller" / "controller.lock").read_text())["pid"]
    os.kill(controller, signal.SIGSTOP)
    os.killpg(run.pid, signal.SIGINT)
    for line in run.stderr:
        if line.startswith("stopping: "):
            break
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said == f"\nstopped; every process has ended, the state is kept in {out}\n"
    assert processes_below(out) == []
