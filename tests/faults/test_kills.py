"""kill -9 at named points and at random ones: nothing acknowledged is lost, and the model is the same.

Each of the four storms of random kills has a few in every test run, 40 kills with the named points. The long
form has 200: HANSA_FAULT_KILLS=50 pytest tests/faults -k random
"""

import os
import random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.e2e.conftest import write_data
from tests.faults.conftest import Federation

CONTROLLER = (
    "update-received",
    "update-published",
    "update-journaled",
    "merge-computed",
    "merge-published",
    "merge-journaled",
)
LEARNER = ("task-taken", "task-trained", "task-offered", "task-uploading", "task-uploaded")
EVALUATOR = ("evaluation-done", "evaluation-reported")
VICTIMS = ["controller", "learner-a", "learner-b", "learner-c", "evaluator-a"]
KILLS = int(os.environ.get("HANSA_FAULT_KILLS", "2"))
SETTINGS = (
    "--set",
    "sites={min: 3, wait: 120}",
    "--set",
    "validation.fraction=0.2",
    "--set",
    "train.epochs=1",
    "--set",
    "keep.best=null",
)


def digest(federation: Federation, job: str) -> str:
    found: str = federation.json("job", "model", job, "-o", "out.safetensors")["digest"]
    return found


def told(federation: Federation, job: str) -> list[dict[str, Any]]:
    """Return a job's history without the fields that depend on the clock."""
    kept = ("distance", "scores", "prepared", "digest", "auxiliary")
    of_update = ("site", "weight", "steps", "loss", "bytes_up")
    return [
        {name: entry[name] for name in kept}
        | {"updates": [{name: update[name] for name in of_update} for update in entry["updates"]]}
        for entry in federation.json("job", "show", job)["history"]
    ]


def storm(
    federation: Federation, victims: dict[str, tuple[str, ...]], *words: str, also: tuple[str, ...] = ()
) -> str:
    """Run an undisturbed job and one whose processes are killed at every point; both must end the same.

    Return the job that was disturbed.
    """
    federation.begin()
    for name in also:
        federation.bring_up(name)
    calm = federation.cli("job", "submit", "job.yaml", *SETTINGS, *words, "--set", "name=calm", "--wait")
    assert calm.returncode == 0, calm.stderr + calm.stdout
    job: str = federation.json("job", "submit", "job.yaml", *SETTINGS, *words, "--set", "name=storm")["job"]
    for name, points in victims.items():
        federation.kill(f"{name}.{federation.lives[name]}")
        for point in points:
            federation.bring_up(name, kill_at=f"{point}:1")
            federation.until(
                lambda name=name: not federation.alive(name), 60, f"{name} never reached {point}"
            )
            federation.kills += 1
        federation.bring_up(name)
    watched = federation.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    federation.check(job)
    assert digest(federation, "storm") == digest(federation, "calm")
    history = told(federation, "storm")
    assert history == told(federation, "calm")
    measured = any(word.startswith("reference=") for word in words)
    assert all((entry["distance"] is not None) is measured for entry in history)
    federation.nursery.stop([f"controller.{federation.lives['controller']}"])
    return job


@pytest.mark.timeout(400)
def test_a_job_survives_a_kill_at_every_named_point_with_the_same_model(federation: Federation) -> None:
    victims = {"controller": CONTROLLER, "learner-b": LEARNER, "evaluator-a": EVALUATOR}
    job = storm(federation, victims, "--set", "pace.rounds=40", "--set", "keep.every=20")
    # The last model and the three updates it is made of, and version 20, which `keep` names.
    assert len(federation.leftovers(job)) == 5
    assert any(key.endswith("/v20") for key in federation.leftovers(job))
    assert federation.kills == 13


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["job-announced", "job-entered"])
def test_an_interrupted_submission_is_not_a_fault_of_the_audit_log(
    federation: Federation, point: str
) -> None:
    """Nobody was told about the job. It is missing or goes on, and from then on it must not get lost."""
    where = ["--store", federation.store] if federation.redis else []
    words = ("audit", "verify", "--state", str(federation.folder / "state" / "controller"), *where)
    federation.bring_up("controller", kill_at=f"{point}:1")
    assert federation.cli("job", "submit", "job.yaml", *SETTINGS).returncode != 0
    federation.until(lambda: not federation.alive("controller"), 30, f"it never reached {point}")
    assert federation.json(*words)["sound"]
    federation.bring_up("controller")
    jobs = federation.json("job", "list")
    assert [job["status"] for job in jobs] == ([] if point == "job-announced" else ["waiting"])
    federation.nursery.stop(["controller.2"])
    assert federation.json(*words)["sound"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["redis"], indirect=True)
@pytest.mark.slow
def test_a_job_survives_a_kill_of_redis_at_every_named_point_with_the_same_model(
    federation: Federation,
) -> None:
    """The controller stays up, waits, and goes on by itself when Redis is back."""
    assert federation.redis
    federation.begin()
    words = (  # one site: the same updates in the same order; slow enough to be there for every kill
        *(*SETTINGS, "--set", "rule=async-fedavg", "--set", "pace={updates: 36}"),
        *("--set", "sites={min: 1, wait: 120, names: [a]}", "--set", "train.epochs=4"),
    )
    calm = federation.cli("job", "submit", "job.yaml", *words, "--set", "name=calm", "--wait")
    assert calm.returncode == 0, calm.stderr + calm.stdout
    job: str = federation.json("job", "submit", "job.yaml", *words, "--set", "name=storm")["job"]
    for point in CONTROLLER:
        assert federation.redis.process
        federation.kill(f"controller.{federation.lives['controller']}")
        federation.bring_up("controller", kill_at=f"{point}:1:{federation.redis.process.pid}")
        federation.until(federation.redis.is_dead, 60, f"never reached {point}")
        federation.kills += 1
        federation.until(
            lambda: "waiting for the store: Redis" in federation.json("job", "show", job)["reason"]
        )
        version = federation.json("job", "show", job)["version"]
        federation.redis.start()
        federation.until(lambda version=version: federation.json("job", "show", job)["version"] > version)
    watched = federation.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    federation.check(job)
    assert digest(federation, "storm") == digest(federation, "calm")
    federation.nursery.stop([f"controller.{federation.lives['controller']}"])
    assert len(federation.leftovers(job)) == 2  # the last model and the update it is made of
    assert federation.kills == 6


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_the_moments_of_a_server_optimizer_survive_a_kill_at_every_named_point(
    federation: Federation,
) -> None:
    job = storm(federation, {"controller": CONTROLLER}, "--set", "rule=fedadam", "--set", "pace.rounds=16")
    # The last model and the three updates it is made of; the model before; two moments of each.
    assert len(federation.leftovers(job)) == 9
    assert federation.kills == 6


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_control_variates_survive_a_kill_at_every_named_point(federation: Federation) -> None:
    """Those of the community and, as every later model depends on them, those of the sites."""
    victims: dict[str, tuple[str, ...]] = {"controller": CONTROLLER, "learner-b": (*LEARNER, "state-kept")}
    job = storm(federation, victims, "--set", "rule=scaffold", "--set", "pace.rounds=30")
    # The last model and the three updates it is made of, and the model before.
    assert len(federation.leftovers(job)) == 5
    assert federation.kills == 12


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
@pytest.mark.parametrize(
    ("words", "updates"),
    [
        (("--set", "rule=fednova", "--set", "server.tau=2"), 3),
        (
            (
                *("--set", "rule=q-fedavg", "--set", "train.optimizer={kind: sgd, lr: 0.1}"),
                *("--set", "sample={kind: power-of-choice, candidates: 3, fraction: 0.67}"),
            ),
            2,
        ),
    ],
    ids=["fednova", "q-fedavg with power of choice"],
)
@pytest.mark.slow
def test_what_merges_are_prepared_with_survives_a_kill_at_every_named_point(
    federation: Federation, words: tuple[str, ...], updates: int
) -> None:
    # Where sites are chosen, a site may only be probed from some round on.
    victims = {"controller": CONTROLLER, "learner-b": ("task-taken", "task-taken")}
    job = storm(federation, victims, *words, "--set", "pace.rounds=24")
    # The last model and the updates it is made of, and the model before.
    assert len(federation.leftovers(job)) == 2 + updates
    assert federation.kills == 8


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_travelling_models_survive_a_kill_at_every_named_point(federation: Federation) -> None:
    """The reference survives, too: distances are the same."""
    chance = np.random.default_rng(1)
    shapes = {"0.weight": (8, 2), "0.bias": (8,), "2.weight": (2, 8), "2.bias": (2,)}
    other = {name: chance.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(other, federation.folder / "other.safetensors")  # as PyTorch writes it, without roles
    victims = {"controller": CONTROLLER, "learner-b": ("task-trained", "task-uploaded")}
    words = ("--set", "rule=radfed", "--set", "pace={rounds: 10, hops: 3}", "--set", "sample.fraction=1.0")
    job = storm(federation, victims, *words, "--set", "reference=other.safetensors")
    assert len(federation.leftovers(job)) == 4  # the last model and the three slots it is made of
    assert federation.kills == 8


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_adaptive_training_without_rounds_survives_a_kill_at_every_named_point(
    federation: Federation,
) -> None:
    """One site trains and two others only evaluate its updates: the same updates in the same order."""
    for seed, site in enumerate("de", start=3):
        write_data(federation.folder / f"{site}.npz", seed)
    victims = {"controller": CONTROLLER, "learner-a": LEARNER, "evaluator-d": EVALUATOR}
    words = (
        *("--set", "rule=async-dvw-adaptive", "--set", "pace={kind: async, updates: 36}"),
        *("--set", "sites={min: 1, wait: 120, names: [a, d, e]}"),
        # The limit on staleness is not reached: while the controller is away nobody knows of it.
        *("--set", "train.until={vc_loss: 2, max_epochs: 4, cycles: 1000}"),
    )
    job = storm(federation, victims, *words, also=("evaluator-d", "evaluator-e"))
    assert len(federation.leftovers(job)) == 2  # the last model and the update it is made of
    assert federation.kills == 13
    federation.bring_up("controller")
    history = told(federation, job)[1:]
    assert len({update["steps"] for entry in history for update in entry["updates"]}) > 1, (
        "the validation loss decides"
    )
    assert all(set(entry["scores"]["a"]["found"]) == set("ade") for entry in history)


def _wait_for_versions(federation: Federation, job: str, count: int) -> None:
    """Wait until a job has made some more versions or is complete, so that kills hit it at any moment."""

    def view() -> Any:
        return federation.json("job", "show", job)

    first = view()["version"]
    federation.until(lambda: view()["status"] == "completed" or view()["version"] >= first + count)


@pytest.mark.timeout(240 + 20 * KILLS)
@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg"])
def test_a_job_survives_random_kills_of_every_process(federation: Federation, rule: str) -> None:
    chance = random.Random(f"{rule} {KILLS}")
    pace = "{rounds: 30}" if rule == "fedavg" else "{updates: 75}"
    federation.begin()
    words = ("--set", f"rule={rule}", "--set", f"pace={pace}")
    jobs: list[str] = []
    while federation.kills < KILLS:
        if not jobs or federation.json("job", "show", jobs[-1])["status"] == "completed":
            jobs.append(federation.json("job", "submit", "job.yaml", *SETTINGS, *words)["job"])
        _wait_for_versions(federation, jobs[-1], chance.randrange(4))
        names = [*VICTIMS, "redis"] if federation.redis else VICTIMS
        name = chance.choice(names) if federation.kills else names[-1]
        if name == "redis":
            federation.strike_redis()
        else:
            federation.strike(name)
        federation.until(lambda: federation.cli("job", "list").returncode == 0)
    for job in jobs:
        watched = federation.cli("job", "watch", job)
        assert watched.returncode == 0, watched.stderr + watched.stdout
        federation.check(job)
    federation.nursery.stop([f"controller.{federation.lives['controller']}"])
    assert [len(federation.leftovers(job)) for job in jobs] == [4] * len(
        jobs
    )  # the last model and three updates


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk", pytest.param("redis", marks=pytest.mark.slow)], indirect=True)
def test_encoded_updates_survive_a_kill_at_every_named_point(federation: Federation) -> None:
    """What was sent, what it stands for and what the site keeps of it: the same models, bit for bit."""
    victims = {
        "controller": ("update-received", "update-encoded", "update-published", "update-journaled"),
        "learner-b": ("task-taken", "state-kept", "task-trained", "task-offered", "task-uploaded"),
    }
    transfer = "transfer={kind: topk, share: 0.1}"
    job = storm(federation, victims, "--set", transfer, "--set", "pace.rounds=30")
    assert len(federation.leftovers(job)) == 4  # the last model and the three updates it is made of
    assert federation.kills == 9
