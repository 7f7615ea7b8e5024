"""DVW and adaptive training with real learners and evaluators."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.models.frames import views
from hansa.common.values.ids import update_key
from hansa.common.values.receipts import Receipt
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.records import replay
from hansa.controller.rules.adaptive import Staleness
from hansa.controller.rules.dvw import Worth
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.e2e.conftest import OWN_APP, Site, weights, write_data
from tests.unit.samples import payload_of


def _start(scene: Site, sites: str) -> None:
    for site in sites:
        scene.daemon("learner", site)
        scene.daemon("evaluator", site)


def test_updates_are_scored_on_validation_data_even_by_evaluators_of_test_data(scene: Site) -> None:
    held = np.load(scene.folder / "a.npz")
    wrong = {"x_test": held["x"], "y_test": 1 - held["y"]}  # a model looks bad on these
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
        assert score["value"] == weights(shown["history"][-1])[site]
    assert scores["b"]["found"]["a"]["score"] > 0.8
    assert scores["b"]["found"]["a"]["n"] == 12  # a fifth of 60 examples, not the test data
    assert (
        shown["history"][-1]["metrics"]["accuracy"] < 0.5
    )  # the community model is measured on a's test data


MOODY_APP = """
import sys
import numpy as np
from hansa import App
from hansa.common.values.results import Evaluation

def evaluate(arrays, examples):
    match len(examples):
        case 8:
            sys.exit("no more evaluations")
        case 6:
            return {"n": 6}
        case 4:
            return Evaluation(n=-4, loss_sum=1.0)
    return Evaluation(n=len(examples), loss_sum=1.0, confusion=((len(examples) - 3, 3), (0, 0)))

app = App(model=lambda: {"w": np.zeros(2)}, classes=2, train=lambda arrays, run: arrays, evaluate=evaluate)
"""


def test_an_app_that_evaluates_by_itself_may_do_anything_at_some_sites(scene: Site) -> None:
    (scene.folder / "app.py").write_text(MOODY_APP)
    for seed, (site, rows) in enumerate({"b": 40, "c": 30, "d": 20}.items()):
        write_data(scene.folder / f"{site}.npz", seed, rows)
    scene.controller()
    _start(scene, "abcd")
    words = (
        "rule=sync-dvw",
        "sites.min=4",
        "pace={rounds: 2}",
        "validation={fraction: 0.2, stratified: false}",
    )
    done = scene.cli(
        "job", "submit", "job.yaml", "--wait", *(word for each in words for word in ("--set", each))
    )
    assert done.returncode == 0, done.stderr + done.stdout
    newest = scene.json("job", "show", "plane")["history"][-1]
    said = {
        "b": "SystemExit: no more evaluations",
        "c": "the app's evaluate function returned dict, not an Evaluation",
        "d": "the app's evaluate function made an invalid Evaluation:"
        " n: input should be greater than or equal to 0 (given: -4)",
    }
    assert newest["lost"] == said
    assert newest["scores"]["a"]["missing"] == said
    assert (newest["scores"]["a"]["basis"], weights(newest)) == ("own", {"a": 0.75})


@pytest.mark.slow
def test_an_adaptive_asynchronous_job_survives_a_controller_that_is_killed_again_and_again(
    scene: Site,
) -> None:
    scene.grace = 60.0
    scene.controller()
    _start(scene, "abc")
    until = (
        "{vc_loss: 1, tombstones: 1, cycles: 2, max_epochs: 3, groups: {slow: {sites: [c], tombstones: 0}}}"
    )
    words = (
        "--set",
        "rule=async-dvw-adaptive",
        "--set",
        "pace={updates: 140}",
        "--set",
        f"train.until={until}",
    )
    job = scene.json("job", "submit", "job.yaml", "--set", "sites.min=3", *words)["job"]
    kept = ("version", "updates", "scores")
    before: list[dict[str, Any]] = []
    for life, version in enumerate((9, 60, 120)):
        scene.until(lambda version=version: scene.json("job", "show", job)["version"] >= version, 60)
        seen = [{name: entry[name] for name in kept} for entry in scene.json("job", "show", job)["history"]]
        assert seen[: len(before)] == before, "what was committed before a kill is as it was"
        before = seen
        scene.kill(f"controller-{life}" if life else "controller")
        scene.controller(f"controller-{life + 1}", listen=scene.address)
    watched = scene.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    shown = scene.json("job", "show", job)
    assert (shown["status"], shown["version"]) == ("completed", 140)
    again = [{name: entry[name] for name in kept} for entry in shown["history"]]
    assert again[: len(before)] == before
    assert all(score["value"] > 0 for entry in again[1:] for score in entry["scores"].values())
    exported = scene.json("job", "model", job, "-o", "out.safetensors")["digest"]
    scene.nursery.stop(["controller-3"])
    _assert_bit_exact(scene.folder / "state" / "controller", exported)


def _assert_bit_exact(folder: Path, exported: str) -> None:
    """Replay a job's journal from its first event, and add its last model up from the receipts."""
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        (record,) = backends.journal.jobs()
        replayed, _, faults = verify(backends, record)
        assert faults == []

        # A controller resumes from a snapshot and the events after it: the same, to the last bit of the
        # rule's memory.
        snapshot = backends.journal.snapshot(record.id)
        assert snapshot is not None, "the job is long enough for one"
        resumed = Machine(record.id, replayed.spec, replayed.rule, record.at)
        resumed.start()
        resumed.restore(snapshot)
        for entry in backends.journal.entries(record.id, snapshot.sequence):
            replay(resumed, entry)
        assert resumed.state.model_dump() == replayed.state.model_dump()
        assert resumed.memories == replayed.memories
        worth, staleness = replayed.memories["weigh"], replayed.memories["train"]
        assert isinstance(worth, Worth)
        assert isinstance(staleness, Staleness)
        assert set(worth.last) == set(staleness.limits) == set("abc")

        # The last model: the mean of every site's last update by its last score, as the receipts tell them.
        receipts = [
            Receipt.model_validate_json(e.receipt) for e in backends.journal.entries(record.id) if e.receipt
        ]
        merged = [receipt for receipt in receipts if receipt.version]
        assert merged[-1].digest == exported
        site_of = {receipt.task: receipt.site for receipt in receipts if receipt.task}
        last = {site_of[task]: (task, p) for receipt in merged for task, p in receipt.contributions.items()}
        assert {site: p for site, (_, p) in last.items()} == worth.last
        total = math.fsum(p for _, p in last.values())
        sums: dict[str, np.ndarray] = {}
        for task, p in last.values():
            with backends.store.open(update_key(task)) as model:
                for name, values in views(model.layout, payload_of(model)).items():
                    sums[name] = sums.get(name, np.zeros(values.shape)) + p * values.astype(np.float64)
        key = replayed.state.current
        assert key is not None
        with backends.store.open(key) as model:
            for name, values in views(model.layout, payload_of(model)).items():
                np.testing.assert_array_max_ulp(values, (sums[name] / total).astype(values.dtype), 1)


def test_training_until_it_is_enough_is_refused_where_the_app_trains_by_itself(scene: Site) -> None:
    (scene.folder / "app.py").write_text(OWN_APP)
    scene.controller()
    scene.daemon("learner", "a")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1", "--set", "train.until={}")
    assert done.returncode == 1
    assert "site a: train.until: the app trains by itself and cannot be stopped between epochs" in done.stdout
