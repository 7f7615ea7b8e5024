"""Daemons that their controller does not let in: their status says so, and why."""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.process.state import read_note
from tests.consortium import Consortium
from tests.e2e.conftest import Site


def note(scene: Site, name: str, key: str) -> str:
    """Return what a daemon's state directory says."""
    return str(read_note(scene.folder / "state" / name, "learner").get(key, ""))


def status(scene: Site, name: str, site: str = "a") -> Any:
    return scene.cli("learner", "status", "--site", site, "--state", str(scene.folder / "state" / name))


@pytest.mark.timeout(120)
def test_the_status_of_a_daemon_whose_certificate_is_revoked_says_so_until_it_has_a_new_one(
    scene: Site,
) -> None:
    consortium = Consortium(scene.folder / "pki")
    hub, alice = consortium.issue("controller", "hub"), consortium.issue("operator", "alice")
    mine, other = consortium.issue("learner", "a"), consortium.issue("learner", "b")
    scene.controller(HANSA_TLS=str(hub))
    scene.daemon("learner", "a", HANSA_TLS=str(mine))
    scene.until(lambda: "is connected to" in note(scene, "learner-a", "says"))
    assert status(scene, "learner-a").returncode == 0
    for each in (mine, other):
        consortium.revoke(each)
    consortium.hand_on_revoked(hub)
    scene.until(lambda: note(scene, "learner-a", "refused"), 60)
    refused = status(scene, "learner-a")
    assert "running (pid" in refused.stdout
    assert "the controller refuses it (" in refused.stdout
    assert "is revoked)" in refused.stdout
    found = scene.cli("site", "list", HANSA_TLS=str(alice)).stdout
    assert "away: " in found
    assert "is revoked" in found
    consortium.issue("learner", "a", out=Path(mine).name)
    scene.until(lambda: "is connected to" in note(scene, "learner-a", "says"), 60)
    assert status(scene, "learner-a").returncode == 0
    scene.daemon("learner", "b", HANSA_TLS=str(other))  # its certificate was revoked before it came
    scene.until(lambda: note(scene, "learner-b", "ended"), 60)
    scene.nursery.processes["learner-b"].join()
    ended = status(scene, "learner-b", "b")
    assert "not running, ended at" in ended.stdout
    assert "is revoked" in ended.stdout
    assert ended.returncode == 1


def test_the_status_of_a_daemon_whose_name_is_taken_says_why_it_ended(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "a")
    scene.until(lambda: "is connected to" in note(scene, "learner-a", "says"))
    scene.daemon("learner", "a", name="twin")
    scene.until(lambda: note(scene, "twin", "ended"))
    scene.nursery.processes["twin"].join()
    ended = status(scene, "twin")
    assert ended.returncode == 1
    assert "not running, ended at" in ended.stdout
    assert "another learner of site 'a' has been connected" in ended.stdout
    found = scene.json("learner", "status", "--site", "a", "--state", str(scene.folder / "state" / "twin"))
    assert (found["running"], found["refused"]) == (False, False)
    assert "another learner" in found["says"]
    assert status(scene, "learner-a").returncode == 0


def test_a_daemon_that_cannot_reach_its_controller_runs_all_the_same(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "a")
    scene.until(lambda: "is connected to" in note(scene, "learner-a", "says"))
    scene.kill("controller")
    scene.until(
        lambda: f"it cannot reach the controller at {scene.address} (" in note(scene, "learner-a", "says")
    )
    assert ") and keeps trying" in status(scene, "learner-a").stdout
    assert status(scene, "learner-a").returncode == 0
