"""kill -9 while a network is trained in parts: phase, split and moments are those of an undisturbed job."""

import pytest

from tests.faults.conftest import Federation
from tests.faults.test_kills import CONTROLLER, storm

WORDS = (
    *("--set", "rule=divide", "--set", "pace.rounds=16", "--set", "layers={prepass: 2, feature_epochs: 2}"),
    *("--set", "local={kind: proximal, mu: 0.1}", "--set", "server={kind: yogi, lr: 0.01}"),
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_a_divided_job_survives_a_kill_at_every_named_point_with_the_same_model(federation: Federation) -> None:
    victims = {"controller": CONTROLLER, "learner-b": ("task-trained", "task-uploaded")}
    job = storm(federation, victims, *WORDS)
    federation.bring_up("controller")
    history = federation.json("job", "show", job)["history"][1:]
    assert [entry["phase"] for entry in history] == ["prepass"] * 2 + ["feature", "fine-tuning"] * 7
    assert {entry["diagnostics"]["layers"]["split"] for entry in history[1:]} == {1}
    assert federation.kills == 8
