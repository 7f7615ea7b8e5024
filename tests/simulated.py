"""Simulations in the process of a test, with the sites of golden runs or with rows of the digits."""

from pathlib import Path
from typing import Any

from hansa.common.app import load_app
from hansa.common.job.spec import JobSpec
from hansa.common.values.views import JobView
from hansa.simulation.data import FileForEach
from hansa.simulation.prepare import Prepared, prepare
from hansa.simulation.run import USUAL, Options, Simulation
from tests.golden.fleet import SITES, version_of


def simulate(folder: Path, job: dict[str, Any], app: str, options: Options = USUAL) -> JobView:
    """Simulate a job with the sites of a golden run."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(SITES):
        (folder / name).write_text(str(number))
    usual = {"app": app, "seed": 11, "sites": {"min": len(SITES)}, "validation": {"fraction": 0.25}}
    data = FileForEach({name: folder / name for name in SITES}, "validation")
    spec = JobSpec.model_validate({**usual, **job})
    return Simulation(Prepared(spec, load_app(app), data), folder / "simulated", options).run()


def simulate_digits(
    folder: Path, job: dict[str, Any], app: str, sites: int, options: Options = USUAL
) -> JobView:
    """Simulate a job with sites that share the digits."""
    folder.mkdir(exist_ok=True)
    usual = {"app": app, "seed": 11, "data": {"source": "digits"}}
    spec = JobSpec.model_validate({**usual, **job})
    return Simulation(prepare(spec, sites, folder), folder, options).run()


def golden(view: JobView) -> dict[str, Any]:
    """Return what golden values have of a job."""
    outcome = {"status": view.status, "versions": [version_of(entry) for entry in view.history]}
    return outcome if view.status == "completed" else outcome | {"reason": view.reason}
