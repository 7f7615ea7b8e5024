"""Actors on a Ray of our own do the tasks of a simulation, with the same models as without them."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hansa.simulation.crew.cluster import AUTO, Cluster
from hansa.simulation.options import Options
from tests.golden.fleet import TORCH
from tests.golden_simulated import POISONED, golden, poison_in, simulate

# Ray must not be imported here: it reads its settings when it is loaded.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: pip install 'hansa[ray]'")

FEDAVG: dict[str, Any] = {"rule": "fedavg", "pace": {"rounds": 2}}
JOBS: dict[str, dict[str, Any]] = {
    "memory of sites": {"rule": "scaffold", "pace": {"rounds": 2}},
    "many models at once": {"rule": "radfed", "pace": {"rounds": 1, "hops": 3}, "sample": {"fraction": 0.6}},
    "training that listens": {
        "rule": "async-dvw-adaptive",
        "pace": {"updates": 8},
        "train": {"until": {"max_epochs": 3, "cycles": 1}},
    },
}
ON_RAY = Options(workers=2, ray=AUTO)
SMALL = 4096  # bytes for models: most of them are on the disk


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One Ray for all tests: a simulation uses the cluster to which its process is connected already."""
    connected = Cluster(AUTO, 2)
    yield
    connected.close()


@pytest.mark.parametrize(
    "name",
    [
        "memory of sites",
        pytest.param("many models at once", marks=pytest.mark.slow),
        pytest.param("training that listens", marks=pytest.mark.slow),
    ],
)
def test_actors_give_the_same_models(tmp_path: Path, name: str) -> None:
    alone = golden(simulate(tmp_path / "alone", JOBS[name], TORCH))
    assert alone["status"] == "completed"
    options = replace(ON_RAY, memory=SMALL) if name == "many models at once" else ON_RAY
    assert golden(simulate(tmp_path / "ray", JOBS[name], TORCH, options)) == alone


@pytest.mark.slow
def test_a_task_that_ended_an_actor_is_done_again(tmp_path: Path) -> None:
    alone = golden(simulate(tmp_path / "alone", FEDAVG, POISONED))
    poison = poison_in(tmp_path / "ray", "once")
    assert golden(simulate(tmp_path / "ray", FEDAVG, POISONED, ON_RAY)) == alone
    assert not poison.exists()


@pytest.mark.slow
def test_a_task_that_ended_two_actors_fails(tmp_path: Path) -> None:
    poison_in(tmp_path / "ray", "always")
    job = FEDAVG | {"pace": {"rounds": 1}}
    view = simulate(tmp_path / "ray", job, POISONED, ON_RAY)
    assert view.status == "completed"
    assert list(view.history[1].lost) == ["s3"]
    assert view.history[1].lost["s3"].startswith("it ended 2 actors, the last one on node ")
