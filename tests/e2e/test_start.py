"""Daemons that cannot work say so when they start; those that may wait for data, and notice edits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import APP_TEXT, Site, write_data

WIDE: dict[str, Any] = {"x": np.zeros((60, 3), np.float32)}


@pytest.mark.parametrize("role", ["learner", "evaluator"])
@pytest.mark.parametrize("detached", [(), ("--daemon",)])
def test_a_daemon_that_can_do_nothing_says_why_and_fails(
    scene: Site, role: str, detached: tuple[str, ...]
) -> None:
    write_data(scene.folder / "wide.npz", 0, changed=WIDE)
    state = scene.folder / "state" / "x"
    words = (role, "start", "--site", "a", "--state", str(state), "--app", "app.py:app", *detached)
    done = scene.cli(*words, "--data", "wide.npz")
    scene.cli(role, "stop", "--site", "a", "--state", str(state))  # should it run after all
    assert done.returncode == 1
    assert "app app.py:app cannot be used: wide.npz: the data do not fit the app's network" in done.stderr
    assert "x has shape [60, 3] and type float32, y has shape [60]; the network raised: " in done.stderr
    assert "--keep-going" in done.stderr
    assert done.stderr.count("cannot be used") == 1, "a failure is told once"


@pytest.mark.parametrize("cause", ["app", "labels", "examples", "policy"])
def test_whatever_the_cause_the_message_names_it(scene: Site, cause: str) -> None:
    words = [
        "--site",
        "a",
        "--state",
        str(scene.folder / "state" / "x"),
        "--app",
        "app.py:app",
        "--data",
        "a.npz",
    ]
    wanted = ""
    if cause == "app":
        (scene.folder / "app.py").write_text("import nothing_of_the_kind\n")
        wanted = "No module named 'nothing_of_the_kind'"
    elif cause == "labels":
        write_data(scene.folder / "a.npz", 0, changed={"y": np.full(60, 2)})
        wanted = "label 2 at row 0 is outside 0 … 1"
    elif cause == "examples":
        write_data(scene.folder / "a.npz", 0, rows=0)
        wanted = "the data hold no examples"
    else:
        (scene.folder / "policy.toml").write_text("apps = []\n")
        words += ["--policy", "policy.toml"]
        wanted = "the site's policy does not allow it"
    done = scene.cli("learner", "start", *words)
    assert done.returncode == 1
    assert "hansa: app app.py:app cannot be used: " in done.stderr
    assert wanted in done.stderr


def listed(scene: Site, site: str, role: str = "learner") -> dict[str, Any]:
    found: dict[str, Any] = next(
        (daemon for daemon in scene.json("site", "list") if (daemon["site"], daemon["role"]) == (site, role)),
        {},
    )
    return found


def test_a_daemon_that_keeps_going_can_work_as_soon_as_its_data_come(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "late", "--keep-going")
    scene.until(lambda: "no such file" in listed(scene, "late").get("apps", {}).get("app.py:app", ""))
    draft = scene.folder / "draft.npz"
    write_data(draft, 0)
    draft.rename(scene.folder / "late.npz")
    scene.until(
        lambda: listed(scene, "late").get("apps", {}).get("app.py:app", "").startswith("ok, 60 examples")
    )
    says = scene.json(
        "learner", "status", "--site", "late", "--state", str(scene.folder / "state" / "learner-late")
    )
    assert "cannot be used" not in says["says"]
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_edit_of_the_app_is_reported_by_site_daemon_and_job(scene: Site) -> None:
    (scene.folder / "helper.py").write_text("WIDTH = 8\n")
    (scene.folder / "app.py").write_text(
        APP_TEXT.replace("import os", "import helper, os").replace("8", "helper.WIDTH")
    )
    scene.controller()
    scene.daemon("learner", "a")
    scene.daemon("evaluator", "a")
    for role in ("learner", "evaluator"):
        scene.until(lambda role=role: listed(scene, "a", role))
    before = listed(scene, "a")
    assert before["sources"] == listed(scene, "a", "evaluator")["sources"]
    assert before["apps"]["app.py:app"] == f"ok, 60 examples, source {before['sources']['app.py:app'][:8]}"
    (scene.folder / "helper.py").write_text("WIDTH = 9\n")
    scene.until(lambda: listed(scene, "a").get("changed") and listed(scene, "a", "evaluator").get("changed"))
    told = "app app.py:app has changed on disk; the loaded version is used until a restart"
    assert scene.log("learner-a").read_text().count(told) == 1
    scene.daemon("learner", "b")  # starts with the edited app
    scene.until(lambda: listed(scene, "b"))
    assert listed(scene, "b")["sources"] != before["sources"]
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.same_app=true")
    assert done.returncode == 1
    assert "the job asks for sites.same_app" in done.stdout
    one = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.names=[a]", "--set", "sites.min=1")
    assert one.returncode == 0, one.stdout + one.stderr
    assert (
        "warning: app.py:app has changed on disk since these daemons loaded it: evaluator a, learner a"
        in one.stderr
    )
    job = scene.json("job", "list")[0]["job"]
    assert "warning: app.py:app has changed on disk since" in scene.cli("job", "watch", job).stderr
    rows = [line for line in scene.cli("site", "list").stdout.splitlines() if line.startswith("a ")]
    assert all("(changed on disk since)" in row for row in rows)


def test_a_site_with_other_features_fails_a_run_by_name(scene: Site, tmp_path: Path) -> None:
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    np.savez(scene.folder / "all.npz", x=x, y=y)
    done = scene.cli(
        "run", "job.yaml", "--out", str(tmp_path / "out"), "--set", "data={source: all.npz, sites: 2}"
    )
    assert done.returncode == 1
    assert "the data do not fit the app's network: x has shape" in done.stderr
