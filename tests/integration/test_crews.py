"""Worker processes do the tasks of a simulation, with the same models as without them."""

import os
from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.errors import HansaError
from hansa.simulation.options import Options
from tests.golden.fleet import TORCH
from tests.golden.jobs import MACHINE
from tests.golden_simulated import golden, simulate, simulate_digits

PROXIMAL = next(members for app, members in MACHINE.values() if "kept adam" in members)
RADFED = {"rule": "radfed", "pace": {"rounds": 2, "hops": 3}, "sample": {"fraction": 0.6}}
JOBS: dict[str, dict[str, Any]] = {
    "fedavg": PROXIMAL["fedavg with batch norm"],
    "radfed": RADFED,
    "scaffold": PROXIMAL["scaffold"],
    "windows": PROXIMAL["fedmmb in PyTorch"],
    "kept optimizer": PROXIMAL["kept adam"],
}
LARGE = """
from torch import nn
from hansa import App
app = App(model=lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)), classes=10)
"""
POISONED = """
import os, signal
from dataclasses import replace
from pathlib import Path
from tests.golden.apps.plain import app as plain

FLAG = Path(__file__).with_name("poison")

def train(arrays, run):
    if run.data.name == "s3" and FLAG.exists():
        if FLAG.read_text() == "once":
            FLAG.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return plain.train(arrays, run)

app = replace(plain, train=train)
"""
CHOOSY = """
import os
if os.getpid() != {pid}:
    {otherwise}
from tests.golden.apps.plain import app
"""


@pytest.mark.parametrize("name", JOBS)
def test_workers_give_the_same_models(tmp_path: Path, name: str) -> None:
    alone = golden(simulate(tmp_path / "alone", JOBS[name], TORCH))
    assert alone["status"] == "completed"
    for workers in (1, 2, 4):
        view = simulate(tmp_path / str(workers), JOBS[name], TORCH, Options(workers=workers))
        assert golden(view) == alone


def test_large_memories_of_sites_pass_in_both_directions_at_once(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    job = {"rule": "scaffold", "pace": {"rounds": 2}, "train": {"batch_size": 30}, "evaluate": {"every": 2}}
    app = f"{tmp_path / 'large.py'}:app"
    alone, shared = (
        simulate_digits(tmp_path / str(workers), job, app, 60, Options(workers=workers)) for workers in (0, 1)
    )
    assert golden(alone) == golden(shared)


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """Return an app whose site s3 ends its process in training while there is a file `poison` beside it."""
    path = tmp_path / "poisoned.py"
    path.write_text(POISONED)
    return path


def test_a_task_that_ended_a_worker_is_done_again(tmp_path: Path, poisoned: Path) -> None:
    alone = golden(simulate(tmp_path / "alone", JOBS["radfed"], f"{poisoned}:app"))
    (tmp_path / "poison").write_text("once")
    view = simulate(tmp_path / "shared", JOBS["radfed"], f"{poisoned}:app", Options(workers=2))
    assert not (tmp_path / "poison").exists()
    assert golden(view) == alone


def test_a_task_that_ended_two_workers_fails(tmp_path: Path, poisoned: Path) -> None:
    (tmp_path / "poison").write_text("always")
    job = {"rule": "fedavg", "pace": {"rounds": 2}}
    view = simulate(tmp_path / "shared", job, f"{poisoned}:app", Options(workers=2))
    assert view.status == "completed"
    for version in view.history[1:]:
        assert version.lost == {"s3": "it ended 2 worker processes, the last one by SIGKILL"}
        assert sorted(version.contributions) == ["s1", "s2", "s4", "s5"]


def test_workers_that_cannot_load_the_app_are_an_error(tmp_path: Path) -> None:
    app = tmp_path / "choosy.py"
    app.write_text(CHOOSY.format(pid=os.getpid(), otherwise="raise RuntimeError('not\\nhere')"))
    with pytest.raises(HansaError, match=r"^a worker process cannot begin: .*RuntimeError: not here$"):
        simulate(tmp_path / "shared", JOBS["fedavg"], f"{app}:app", Options(workers=2))


def test_workers_that_die_as_they_start_are_an_error(tmp_path: Path) -> None:
    app = tmp_path / "choosy.py"
    app.write_text(CHOOSY.format(pid=os.getpid(), otherwise="os.abort()"))
    words = "^3 worker processes died before they were ready, the last one by SIGABRT$"
    with pytest.raises(HansaError, match=words):
        simulate(tmp_path / "shared", JOBS["fedavg"], f"{app}:app", Options(workers=2))
