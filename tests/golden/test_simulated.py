"""Simulated jobs give the golden values of real federations: every version, its weights and its steps."""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.app import load_app
from hansa.common.job.spec import JobSpec
from hansa.common.torch.threads import threads
from hansa.common.values.views import JobView
from hansa.simulation.data import FileForEach
from hansa.simulation.prepare import Prepared
from hansa.simulation.run import Simulation
from tests.golden import files, jobs
from tests.golden.fleet import LIGHT, SITES, run, version_of

GROUPS = {"portable": jobs.PORTABLE, "machine": jobs.MACHINE}
FAMILIES = [
    (group, name)
    for group, families in GROUPS.items()
    for name, (app, _) in families.items()
    if app != LIGHT  # its sites are no apps
]


def simulate(folder: Path, job: dict[str, Any], app: str) -> JobView:
    """Simulate a job with the sites of a golden run."""
    for number, name in enumerate(SITES):
        (folder / name).write_text(str(number))
    usual = {"app": app, "seed": 11, "sites": {"min": len(SITES)}, "validation": {"fraction": 0.25}}
    data = FileForEach({name: folder / name for name in SITES}, "validation")
    spec = JobSpec.model_validate({**usual, **job})
    return Simulation(Prepared(spec, load_app(app), data), folder / "simulated").run()


def simulated(folder: Path, job: dict[str, Any], app: str) -> dict[str, Any]:
    """Return what golden values have of a simulated job."""
    view = simulate(folder, job, app)
    outcome = {"status": view.status, "versions": [version_of(entry) for entry in view.history]}
    return outcome if view.status == "completed" else outcome | {"reason": view.reason}


@pytest.mark.parametrize(("group", "family"), FAMILIES)
async def test_every_version_is_that_of_a_deployment(group: str, family: str, tmp_path: Path) -> None:
    app, members = GROUPS[group][family]
    # Where bits depend on the machine, a federation on this one is the measure.
    with threads(1):
        real = (
            await run(tmp_path, members, app) if group == "machine" else files.read("portable.json")[family]
        )
    now = {}
    for number, (name, job) in enumerate(members.items()):
        (tmp_path / str(number)).mkdir()
        now[name] = files.plain(simulated(tmp_path / str(number), job, app))
    assert not files.differences(files.plain(real), now)


@pytest.mark.parametrize("kind", ["none", "int8"])
def test_updates_have_the_bytes_that_they_would_be_sent_in(tmp_path: Path, kind: str) -> None:
    app = next(app for app, _ in jobs.PORTABLE.values() if app != LIGHT)
    job = {"rule": "fedavg", "pace": {"rounds": 3}, "transfer": {"kind": kind}}
    history = simulate(tmp_path, job, app).history
    assert len(history) == 4
    for entry in history[2:]:  # with version 1 came version 0
        assert sum(update.bytes_up for update in entry.updates) == entry.bytes_up > 0
