"""Stopping a learner: the task in hand is finished if there is time, and given up if there is not."""

import pytest

from tests.e2e.conftest import Site


@pytest.mark.parametrize(("drain", "finished"), [("60", True), ("0", False)])
def test_a_stopped_learner_finishes_its_task_if_it_may(scene: Site, drain: str, finished: bool) -> None:
    scene.controller()
    learner = scene.daemon("learner", "a", pause=1.0, HANSA_DRAIN=drain)
    submitted = scene.cli("job", "submit", "job.yaml", "--set", "sites.min=1", "--set", "pace.rounds=1")
    assert submitted.returncode == 0, submitted.stderr
    scene.until(
        lambda: [task for each in scene.json("site", "list") for task in each["doing"] if task[-2:] == "-2"], 60
    )
    process = scene.nursery.processes[learner]
    process.terminate()
    process.join(60)
    log = scene.log(learner).read_text()
    assert process.exitcode == 0, log
    assert ("finishing task" in log) is finished
    job = scene.json("job", "show", "plane")
    assert (job["version"] == 1) is finished, job
    if finished:
        assert job["status"] == "completed"
