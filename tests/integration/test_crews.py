"""Worker processes do the tasks of a simulation, with the same models as without them."""

from pathlib import Path
from typing import Any

import pytest

from hansa.simulation.run import Options
from tests.golden.fleet import TORCH
from tests.golden.jobs import MACHINE
from tests.simulated import golden, simulate, simulate_digits

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
