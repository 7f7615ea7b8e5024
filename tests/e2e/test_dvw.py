"""DVW and adaptive training with real learners and evaluators."""

import numpy as np

from tests.e2e.conftest import Site, write_data


def _start(scene: Site, sites: str) -> None:
    for site in sites:
        scene.daemon("learner", site)
        scene.daemon("evaluator", site)


def test_updates_are_scored_on_validation_data_even_by_evaluators_of_test_data(scene: Site) -> None:
    held = np.load(scene.folder / "a.npz")
    wrong = {"x_test": held["x"], "y_test": 1 - held["y"]}  # whoever measures on these finds a bad model
    write_data(scene.folder / "a.npz", seed=0, changed=wrong)
    write_data(scene.folder / "c.npz", seed=2, rows=1)  # too few to hold any out
    scene.controller()
    scene.daemon("learner", "a")
    scene.daemon("evaluator", "a", "--split", "test")
    _start(scene, "bc")
    words = ("--set", "rule=sync-dvw", "--set", "sites.min=3", "--set", "pace={rounds: 4}")
    done = scene.cli("job", "submit", "job.yaml", "--wait", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    shown = scene.json("job", "show", "plane")
    scores = shown["history"][-1]["scores"]
    assert set(scores) == set("abc")
    for site, score in scores.items():
        assert (score["basis"], score["coverage"], score["missing"]) == ("pooled", 1.0, {}), site
        assert set(score["found"]) == {"a", "b"}  # c has nothing to measure on
        assert score["value"] == shown["history"][-1]["contributions"][site]
    assert scores["b"]["found"]["a"]["score"] > 0.8
    assert scores["b"]["found"]["a"]["n"] == 12  # a fifth of 60 examples, not the test data
    assert shown["history"][-1]["metrics"]["accuracy"] < 0.5  # the community model is measured on a's test data


def test_an_adaptive_asynchronous_job_survives_a_killed_controller(scene: Site) -> None:
    scene.grace = 60.0
    scene.controller()
    _start(scene, "abc")
    until = "{loss: 1, tombstones: 1, cycles: 2, max_epochs: 6, groups: {slow: {sites: [c], tombstones: 0}}}"
    words = ("--set", "rule=async-dvw-adaptive", "--set", "pace={updates: 24}", "--set", f"train.until={until}")
    job = scene.json("job", "submit", "job.yaml", "--set", "sites.min=3", *words)["job"]
    scene.until(lambda: scene.json("job", "show", job)["version"] >= 9)
    before = scene.json("job", "show", job)["history"]
    scene.kill("controller")
    scene.controller("controller-again", listen=scene.address)
    watched = scene.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    shown = scene.json("job", "show", job)
    assert (shown["status"], shown["version"]) == ("completed", 24)
    kept = ("version", "contributions", "staleness", "scores")
    again = [{name: entry[name] for name in kept} for entry in shown["history"]]
    assert again[: len(before)] == [{name: entry[name] for name in kept} for entry in before]
    assert all(score["value"] > 0 for entry in again[1:] for score in entry["scores"].values())
    state = str(scene.folder / "state" / "controller")
    verified = scene.cli("job", "verify", job, "--state", state)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_training_until_it_is_enough_is_refused_where_the_app_trains_by_itself(scene: Site) -> None:
    (scene.folder / "app.py").write_text(
        "import numpy as np\n"
        "from hansa import App\n"
        "from hansa.common.tasks import Evaluation\n"
        "app = App(model=lambda: {'w': np.zeros(2)}, classes=2, train=lambda arrays, run: arrays,\n"
        "    evaluate=lambda arrays, examples: Evaluation(n=1, loss_sum=1.0, confusion=((1, 0), (0, 0))))\n"
    )
    scene.controller()
    scene.daemon("learner", "a")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1", "--set", "train.until={}")
    assert done.returncode == 1
    assert "site a: train.until: the app trains by itself and cannot be stopped between epochs" in done.stdout
