"""Daemons as users run them: started, watched, killed, restarted through the command line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import Site, weights, write_data


def test_two_sites_train_and_the_model_loads_in_pytorch(scene: Site) -> None:
    scene.controller()
    for site in ("a", "b"):
        scene.daemon("learner", site)
        scene.daemon("evaluator", site)
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "pace.rounds=4")
    assert done.returncode == 0, done.stderr
    assert "round 4/4" in done.stdout
    listed = scene.json("job", "list")
    assert [(job["name"], job["status"], job["rounds"]) for job in listed] == [("plane", "completed", 4)]
    shown = scene.json("job", "show", "plane")
    keys = {
        "job",
        "name",
        "status",
        "reason",
        "version",
        "rounds",
        "seconds",
        "metrics",
        "bytes_up",
        "bytes_down",
    }
    keys |= {"metrics_version", "examples", "examples_total", "drawn", "test"}
    keys |= {"warnings", "shortfalls", "resolved", "rule", "app", "unit", "rounds_asked", "submitted"}
    keys |= {"evaluators", "keep", "kept", "best"}
    assert keys | {"history"} == set(shown)
    assert shown["metrics"]["accuracy"] > 0.9
    assert set(shown["metrics"]) == {"accuracy", "loss", "weighted_f1"}
    assert weights(shown["history"][-1]) == {"a": 48.0, "b": 48.0}
    assert {"version", "round", "seconds", "metrics", "updates", "bytes_up", "bytes_down"} <= set(
        shown["history"][1]
    )
    fetched = scene.cli("job", "model", "plane", "-o", "model.safetensors")
    assert fetched.returncode == 0, fetched.stderr
    import torch
    from safetensors.torch import load_file

    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    module.load_state_dict(load_file(scene.folder / "model.safetensors"))
    held = np.load(scene.folder / "c.npz")
    predicted = module(torch.from_numpy(held["x"])).argmax(1).numpy()
    assert (predicted == held["y"]).mean() > 0.9
    sites = scene.json("site", "list")
    assert {(daemon["site"], daemon["role"]) for daemon in sites} == {
        (site, role) for site in "ab" for role in ("learner", "evaluator")
    }


def digest(scene: Site, job: str) -> str:
    found: str = scene.json("job", "model", job, "-o", "out.safetensors")["digest"]
    return found


def test_the_same_job_gives_the_same_model_bit_for_bit_even_when_every_process_is_killed(scene: Site) -> None:
    address = scene.controller()
    for site in ("a", "b"):
        scene.daemon("learner", site)
    scene.cli("job", "submit", "job.yaml", "--wait", "--set", "name=undisturbed")
    wanted = digest(scene, "undisturbed")
    for site in ("a", "b"):
        scene.kill(f"learner-{site}")
        scene.daemon("learner", site, name=f"slow-{site}", pause=0.02)
    scene.cli("job", "submit", "job.yaml", "--set", "name=disturbed")
    scene.until(lambda: scene.json("job", "show", "disturbed")["version"] >= 1)
    scene.kill("controller")
    scene.controller("controller-2", listen=address)
    scene.until(lambda: scene.json("job", "show", "disturbed")["version"] >= 2)
    scene.kill("slow-b")
    scene.daemon("learner", "b", name="again-b")
    watched = scene.cli("job", "watch", "disturbed")
    assert watched.returncode == 0, watched.stderr
    assert digest(scene, "disturbed") == wanted


def test_a_learner_that_is_killed_for_good_is_left_out_at_the_deadline(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "a")
    scene.daemon("learner", "b", pause=5)
    submitted = scene.json("job", "submit", "job.yaml", "--set", "pace={rounds: 1, deadline: 10}")
    scene.until(lambda: any(d["site"] == "b" and d["doing"] for d in scene.json("site", "list")))
    scene.kill("learner-b")
    watched = scene.cli("job", "watch", submitted["job"])
    assert watched.returncode == 0, watched.stderr
    last = scene.json("job", "show", submitted["job"])["history"][-1]
    assert set(weights(last)) == {"a"}
    assert "b" in last["lost"]


def test_cancellation_reaches_a_training_learner_within_a_batch(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "a", pause=0.2)
    submitted = scene.json("job", "submit", "job.yaml", "--set", "sites.min=1", "--set", "train.epochs=1000")
    scene.until(
        lambda: (
            scene.json("site", "list") and scene.json("job", "show", submitted["job"])["status"] == "running"
        )
    )
    scene.until(lambda: scene.json("site", "list")[0]["doing"])
    assert scene.cli("job", "cancel", submitted["job"]).returncode == 0
    quick = scene.cli(
        "job", "submit", "job.yaml", "--wait", "--set", "sites.min=1", "--set", "train.epochs=1"
    )
    assert quick.returncode == 0, quick.stderr
    assert scene.json("job", "show", submitted["job"])["status"] == "cancelled"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"x": np.full((4, 2), np.nan, np.float32), "y": np.zeros(4, np.int64)},
            "x holds NaN or infinite values in 4 rows",
        ),
        (
            {"x": np.zeros((4, 2), np.float32), "y": np.array([0, 1, 2, 1])},
            "label 2 at row 2 is outside 0 … 1",
        ),
        ({"x": np.zeros((4, 2), np.float32), "y": np.zeros(4)}, "labels must be integers"),
    ],
)
def test_unusable_data_fails_the_job_and_names_the_site(
    scene: Site, changed: dict[str, np.ndarray], reason: str
) -> None:
    write_data(scene.folder / "bad.npz", 0, changed=changed)
    scene.controller()
    scene.daemon("learner", "clinic", "--keep-going", data="bad.npz")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1")
    assert done.returncode == 1
    assert "site clinic (learner)" in done.stdout
    assert reason in done.stdout


def test_an_app_that_cannot_be_imported_fails_the_job_and_names_the_site(scene: Site) -> None:
    (scene.folder / "app.py").write_text("import a_module_that_is_not_there\n")
    scene.controller()
    scene.daemon("learner", "a", "--keep-going")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1")
    assert done.returncode == 1
    assert "site a (learner)" in done.stdout
    assert "No module named 'a_module_that_is_not_there'" in done.stdout


def test_training_code_that_raises_is_reported_with_site_and_reason(scene: Site) -> None:
    (scene.folder / "app.py").write_text(
        "from torch import nn\nfrom hansa import App\n"
        "def broken(x):\n    raise RuntimeError('the scanner is on fire')\n"
        "app = App(model=lambda: nn.Linear(2, 2), classes=2, transform=broken)\n"
    )
    scene.controller()
    scene.daemon("learner", "a")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1")
    assert done.returncode == 1
    assert "a: RuntimeError: the scanner is on fire" in done.stdout


@pytest.mark.slow
def test_detached_daemons_start_report_and_stop(scene: Site) -> None:
    state = str(scene.folder / "state" / "detached")
    started = scene.cli("controller", "start", "--listen", "127.0.0.1:0", "--state", state, "--daemon")
    assert started.returncode == 0, started.stderr
    note = json.loads((Path(state) / "controller.lock").read_text())
    try:
        assert f"pid {note['pid']}" in started.stdout
        scene.address = note["address"]
        status = scene.json("controller", "status", "--controller", scene.address)
        assert status["pid"] == note["pid"]
        second = scene.cli("controller", "start", "--listen", "127.0.0.1:0", "--state", state)
        assert second.returncode == 1
        assert f"in use by another controller (pid {note['pid']})" in second.stderr
        taken = scene.cli(
            "controller", "start", "--listen", scene.address, "--state", f"{state}-2", "--daemon"
        )
        assert taken.returncode == 1
        assert f"cannot listen on {scene.address}: Address already in use" in taken.stderr
        learner = ("--site", "a", "--state", str(scene.folder / "state" / "a"))
        up = scene.cli("learner", "start", *learner, "--data", "a.npz", "--app", "app.py:app", "--daemon")
        assert up.returncode == 0, up.stderr
        assert scene.json("learner", "status", *learner)["running"]
        twin = ("--site", "a", "--state", str(scene.folder / "state" / "a2"))
        again = scene.cli("learner", "start", *twin, "--data", "a.npz", "--app", "app.py:app")
        assert again.returncode == 1
        assert "another learner of site 'a' has been connected" in again.stderr
        assert scene.cli("learner", "stop", *learner).stdout == "learner of a stopped\n"
        assert not scene.json("learner", "status", *learner)["running"]
    finally:
        stopped = scene.cli("controller", "stop", "--state", state)
    assert stopped.stdout == "controller stopped\n"
    assert "no controller is running" in scene.cli("controller", "stop", "--state", state).stdout


def test_a_detached_learner_says_which_app_it_cannot_use(scene: Site) -> None:
    scene.controller()
    learner = ("--site", "a", "--state", str(scene.folder / "state" / "a"))
    apps = ("--app", "app.py:app", "--app", "app.py:apq")
    up = scene.cli("learner", "start", *learner, "--data", "a.npz", *apps, "--daemon")
    try:
        assert up.returncode == 0, up.stderr
        wanted = "but app app.py:apq cannot be used: app.py has no attribute 'apq'"
        assert wanted in up.stdout
        assert wanted in scene.json("learner", "status", *learner)["says"]
        assert scene.json("site", "list")[0]["apps"]["app.py:apq"] == "app.py has no attribute 'apq'"
    finally:
        scene.cli("learner", "stop", *learner)


def test_a_learner_waits_for_a_controller_that_is_not_there_yet(scene: Site) -> None:
    address = scene.controller()
    scene.kill("controller")
    scene.daemon("learner", "a")
    scene.until(lambda: "out of reach" in scene.log("learner-a").read_text())
    scene.controller("controller-2", listen=address)
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1")
    assert done.returncode == 0, done.stderr
    assert scene.log("learner-a").read_text().count("out of reach") == 1


def test_any_framework_can_train_through_numpy_functions(scene: Site) -> None:
    (scene.folder / "app.py").write_text(
        "import numpy as np\nfrom hansa import App\nfrom hansa.common.values.results import Evaluation\n"
        "def train(arrays, run):\n"
        "    for epoch in range(1, run.epochs + 1):\n"
        "        arrays['mean'] += 0.5 * (run.examples.x.mean(0) - arrays['mean'])\n"
        "        run.progress(epoch, 0.0)\n"
        "    return arrays\n"
        "def evaluate(arrays, examples):\n"
        "    return Evaluation(n=len(examples), loss_sum=float(((examples.x - arrays['mean']) ** 2).sum()))\n"
        "app = App(model=lambda: {'mean': np.zeros(2, np.float32)}, task='regression',"
        " train=train, evaluate=evaluate)\n"
    )
    scene.controller(store="memory:")
    scene.daemon("learner", "a")
    scene.daemon("evaluator", "a", "--split", "test")
    done = scene.cli(
        "job", "submit", "job.yaml", "--wait", "--set", "sites.min=1", "--set", "validation.fraction=0"
    )
    assert done.returncode == 0, done.stderr
    shown = scene.json("job", "show", "plane")
    losses = [entry["metrics"]["loss"] for entry in shown["history"] if entry["metrics"]]
    assert losses == sorted(losses, reverse=True)


def test_a_foreground_learner_stops_at_ctrl_c(scene: Site) -> None:
    scene.controller()
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "hansa",
                "learner",
                "start",
                "--controller",
                scene.address,
                "--site",
                "z",
            ),
            *("--data", "a.npz", "--app", "app.py:app", "--state", "state/z"),
        ],
        cwd=scene.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    scene.until(lambda: any(daemon["site"] == "z" for daemon in scene.json("site", "list")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "Traceback" not in errors
    scene.until(lambda: [each["why"] for each in scene.json("site", "list")] == ["it was stopped"])
