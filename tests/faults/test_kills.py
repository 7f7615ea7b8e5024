"""kill -9 at named points and at random ones: nothing that was acknowledged is lost, and the model is the same.

Each of the four storms of random kills has a few in every test run, 38 kills with the named points. The long form has
200: HANSA_FAULT_KILLS=50 pytest tests/faults -k random
"""

import os
import random

import pytest

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
KILLS = int(os.environ.get("HANSA_FAULT_KILLS", "3"))
SETTINGS = ("--set", "sites={min: 3, wait: 120}", "--set", "validation.fraction=0.2", "--set", "train.epochs=1")


def digest(federation: Federation, job: str) -> str:
    found: str = federation.json("job", "model", job, "-o", "out.safetensors")["digest"]
    return found


@pytest.mark.timeout(400)
def test_a_job_survives_a_kill_at_every_named_point_with_the_same_model(federation: Federation) -> None:
    federation.begin()
    calm = federation.cli(
        "job", "submit", "job.yaml", *SETTINGS, "--set", "name=calm", "--set", "pace.rounds=40", "--wait"
    )
    assert calm.returncode == 0, calm.stderr + calm.stdout
    submitted = federation.json(
        "job", "submit", "job.yaml", *SETTINGS, "--set", "name=storm", "--set", "pace.rounds=40"
    )
    for name, points in (("controller", CONTROLLER), ("learner-b", LEARNER), ("evaluator-a", EVALUATOR)):
        federation.kill(f"{name}.{federation.lives[name]}")
        for point in points:
            federation.bring_up(name, kill_at=f"{point}:1")
            federation.until(lambda name=name: not federation.alive(name), 60, f"{name} never reached {point}")
            federation.kills += 1
        federation.bring_up(name)
    watched = federation.cli("job", "watch", submitted["job"])
    assert watched.returncode == 0, watched.stderr + watched.stdout
    federation.check(submitted["job"])
    assert digest(federation, "storm") == digest(federation, "calm")
    federation.nursery.stop([f"controller.{federation.lives['controller']}"])
    assert len(federation.leftovers(submitted["job"])) == 4  # the last model and the three updates it is made of
    assert federation.kills == 13


@pytest.mark.timeout(240 + 20 * KILLS)
@pytest.mark.parametrize("rule", ["fedavg", "async-fedavg"])
def test_a_job_survives_random_kills_of_every_process(federation: Federation, rule: str) -> None:
    chance = random.Random(f"{rule} {KILLS}")
    pace = "{rounds: 60}" if rule == "fedavg" else "{updates: 150}"
    federation.begin()
    words = ("--set", f"rule={rule}", "--set", f"pace={pace}")
    jobs: list[str] = []
    while federation.kills < KILLS:
        if not jobs or federation.json("job", "show", jobs[-1])["status"] == "completed":
            jobs.append(federation.json("job", "submit", "job.yaml", *SETTINGS, *words)["job"])
        names = ["controller", "learner-a", "learner-b", "learner-c", "evaluator-a"] + ["redis"] * bool(
            federation.redis
        )
        name = chance.choice(names) if federation.kills else names[-1]
        if name == "redis":
            federation.strike_redis(chance)
        else:
            federation.strike(name, chance)
        federation.until(lambda: federation.cli("job", "list").returncode == 0)
    for job in jobs:
        watched = federation.cli("job", "watch", job)
        assert watched.returncode == 0, watched.stderr + watched.stdout
        federation.check(job)
