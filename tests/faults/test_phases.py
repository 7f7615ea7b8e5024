"""kill -9 while a network is trained in parts: phase, split and moments are those of an undisturbed job."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults.conftest import Federation
from tests.faults.test_kills import CONTROLLER, SETTINGS, digest, storm

WORDS = (
    *("--set", "rule=divide", "--set", "pace.rounds=16", "--set", "layers={prepass: 2, feature_epochs: 2}"),
    *("--set", "local={kind: proximal, mu: 0.1}", "--set", "server={kind: yogi, lr: 0.01}"),
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_a_divided_job_survives_a_kill_at_every_named_point_with_the_same_model(
    federation: Federation,
) -> None:
    victims = {"controller": CONTROLLER, "learner-b": ("task-trained", "task-uploaded")}
    job = storm(federation, victims, *WORDS)
    federation.bring_up("controller")
    history = federation.json("job", "show", job)["history"][1:]
    assert [entry["phase"] for entry in history] == ["prepass"] * 2 + ["feature", "fine-tuning"] * 7
    assert {entry["diagnostics"]["layers"]["split"] for entry in history[1:]} == {1}
    assert federation.kills == 8


@pytest.mark.timeout(240)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_a_divided_job_from_a_file_survives_a_kill_while_a_site_describes_the_model(
    federation: Federation,
) -> None:
    chance = np.random.default_rng(5)
    shapes = {"0.weight": (8, 2), "0.bias": (8,), "2.weight": (2, 8), "2.bias": (2,)}
    arrays = {name: chance.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(arrays, federation.folder / "start.safetensors")  # as torch would write it: nothing but numbers
    words = (
        *(*SETTINGS, "--set", "init=start.safetensors", "--set", "rule=divide", "--set", "pace.rounds=5"),
        *("--set", "layers={prepass: 1, feature_epochs: 1}"),
    )
    federation.begin()
    calm = federation.cli("job", "submit", "job.yaml", *words, "--set", "name=calm", "--wait")
    assert calm.returncode == 0, calm.stderr + calm.stdout
    for point in ("job-entered", "description-journaled"):
        federation.kill(f"controller.{federation.lives['controller']}")
        federation.bring_up("controller", kill_at=f"{point}:1")
        federation.cli("job", "submit", "job.yaml", *words, "--set", f"name={point}")
        federation.until(lambda: not federation.alive("controller"), 60, f"it never reached {point}")
        federation.bring_up("controller")
        watched = federation.cli("job", "watch", point)
        shown = federation.json("job", "show", point)
        if point == "job-entered":  # its model never came: the operator was not told that it is there
            assert (shown["status"], shown["reason"]) == ("failed", "the submission was interrupted")
            continue
        assert watched.returncode == 0, watched.stderr + watched.stdout
        assert [entry["phase"] for entry in shown["history"][1:]] == [
            "prepass",
            *["feature", "fine-tuning"] * 2,
        ]
        assert digest(federation, point) == digest(federation, "calm")
        federation.check(shown["job"])
