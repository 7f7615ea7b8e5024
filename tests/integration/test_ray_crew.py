"""Actors on a Ray of our own do the tasks of a simulation, with the same models as without them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from hansa.simulation.options import Options
from tests.golden.fleet import TORCH
from tests.golden_simulated import golden, simulate

# Ray must not be imported here: it reads its settings when it is loaded.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install 'hansa[ray]'")


def test_actors_give_the_same_models(tmp_path: Path) -> None:
    job = {"rule": "scaffold", "pace": {"rounds": 2}}
    alone = golden(simulate(tmp_path / "alone", job, TORCH))
    assert alone["status"] == "completed"
    assert golden(simulate(tmp_path / "ray", job, TORCH, Options(workers=2, ray="auto"))) == alone
