"""Sweeps by simulation, from Python: runs of one seed start alike, and failures stay their own."""

import json
from pathlib import Path
from typing import Any

import pytest

import hansa
from hansa.common.job.spec import JobSpec
from hansa.simulation.run import Simulation
from hansa.simulation.sites.prepare import prepare
from hansa.simulation.sweep.runners import SimulationRunner
from tests.unit.sweep.samples import JOB

SMALL: dict[str, Any] = {
    "base": JOB
    | {"data": {"source": "digits", "sites": 4, "examples": 120, "partition": {"sizes": "skewed"}}},
    "set": {"pace.rounds": 2, "train.epochs": 1},
}
APP = """
from helper import WIDTH
from torch import nn
from hansa import App
app = App(model=lambda: nn.Linear(64, WIDTH), classes=WIDTH)
"""
pytestmark = pytest.mark.usefixtures("one_thread")


def reports(folder: Path) -> list[dict[str, Any]]:
    """Return the reports of a sweep's runs, in its order."""
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    return [json.loads((folder / run["folder"] / "report.json").read_text()) for run in runs]


def test_runs_of_one_seed_have_the_same_partition_first_model_and_draws(tmp_path: Path) -> None:
    axes = {
        "method": {
            "examples": {},
            "equal": {"weigh.kind": "equal"},
            "momentum": {"rule": "fedavgm"},
        },
        "sample.kind": ["uniform"],
    }
    rows = hansa.sweep(
        SMALL | {"axes": axes, "seeds": [1, 2], "set": SMALL["set"] | {"sample.fraction": 0.5}}, out=tmp_path
    )
    assert [row["completed"] for row in rows] == [2, 2, 2]
    one, other = reports(tmp_path)[:3], reports(tmp_path)[3:]
    for same in (one, other):
        assert len({report["history"][0]["digest"] for report in same}) == 1, "the first model"
        firsts = [report["history"][1]["updates"] for report in same]
        drawn = [[(u["site"], u["examples"], u["steps"], u["loss"]) for u in updates] for updates in firsts]
        assert drawn[0] == drawn[1] == drawn[2], "sites, their data, and the order of their examples"
        assert len(drawn[0]) == 2
        second = [[u["site"] for u in report["history"][2]["updates"]] for report in same]
        assert second[0] == second[1] == second[2], "later draws do not depend on what is varied"
        assert len({report["history"][1]["digest"] for report in same}) == 2, "weights make a difference"
    assert one[0]["history"][0]["digest"] != other[0]["history"][0]["digest"]


def test_a_run_that_was_interrupted_goes_on_from_its_save(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    spec = JobSpec.model_validate(SMALL["base"] | {"pace": {"rounds": 2}, "train": {"epochs": 1}})
    for each in (whole, folder):
        each.mkdir()
    killed = Simulation(prepare(spec, None, folder), folder)

    def changed() -> None:
        if killed.machine.state.version == 1:
            killed.saves.save()
            raise KeyboardInterrupt

    killed.driver.tick = changed
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    runner = SimulationRunner(0, None)
    report, expected = runner.run(spec, folder), runner.run(spec, whole)
    assert report["job"] == killed.machine.job, "it is the same job"
    assert [each["digest"] for each in report["history"]] == [each["digest"] for each in expected["history"]]
    assert not (folder / "save").exists()


def test_a_run_whose_app_fails_shows_why_and_the_others_go_on(tmp_path: Path) -> None:
    for name, width in (("good", "10"), ("wrong", "3"), ("broken", "1 / 0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(APP)
        (tmp_path / name / "helper.py").write_text(f"WIDTH = {width}\n")
    apps = {name: {"app": f"{tmp_path / name}/app.py:app"} for name in ("wrong", "broken", "good")}
    rows = hansa.sweep(SMALL | {"axes": {"app of": apps}}, out=tmp_path / "out")
    assert [(row["app of"], row["completed"]) for row in rows] == [("wrong", 0), ("broken", 0), ("good", 1)]
    assert rows[2]["accuracy_final"] is not None, "its own helper was imported, not that of the others"
    assert "ZeroDivisionError" in rows.runs[1]["reason"]
    assert rows.runs[0]["reason"]


def test_ways_of_running_are_chosen_one_at_a_time() -> None:
    with pytest.raises(hansa.HansaError, match="leave out --fleet and --controller"):
        hansa.sweep(SMALL, processes=True, controller="127.0.0.1:1")
    with pytest.raises(hansa.HansaError, match="--workers is for simulations"):
        hansa.sweep(SMALL, processes=True, workers=2)
