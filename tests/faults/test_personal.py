"""kill -9 while a job has personal tensors: they are always those of the last accepted update."""

import pytest
from safetensors.numpy import load_file

from tests.faults.conftest import Federation
from tests.faults.test_kills import digest

WORDS = (
    *("--set", "rule=fedrep", "--set", "local={head_epochs: 2}", "--set", "train.epochs=1"),
    *("--set", "sites={min: 3, wait: 120}", "--set", "pace.rounds=10", "--set", "validation.fraction=0"),
)
POINTS = (
    *("task-taken", "personal-kept", "task-trained", "task-offered", "task-uploading"),
    *("task-uploaded", "personal-committed"),
)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_a_storm_of_kills_leaves_the_models_of_a_calm_run(federation: Federation) -> None:
    federation.bring_up("controller")
    for site in "ac":
        federation.bring_up(f"learner-{site}")
    storm = federation.json("job", "submit", "job.yaml", *WORDS, "--set", "name=storm")["job"]
    for point in (*POINTS, ""):
        federation.bring_up("learner-b", f"{point}:1" if point else "")
        if point:
            federation.until(lambda: not federation.alive("learner-b"), 60, f"never reached {point}")
        if point == "personal-kept":
            federation.kill(f"controller.{federation.lives['controller']}")
            federation.bring_up("controller")
    watched = federation.cli("job", "watch", storm)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    calm = federation.json("job", "submit", "job.yaml", *WORDS, "--set", "name=calm", "--wait")["job"]
    assert digest(federation, "storm") == digest(federation, "calm")
    for site in "abc":
        folder = federation.folder / "state" / f"learner-{site}" / "personal"
        one, other = (load_file(folder / f"{job}.safetensors") for job in (storm, calm))
        assert set(one) == {"2.weight", "2.bias"}
        assert all(one[name].tobytes() == other[name].tobytes() for name in one), site
    federation.check(storm)
