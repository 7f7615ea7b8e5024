"""Simulations of golden jobs, and of jobs with rows of the digits, in the process of a test."""

from pathlib import Path
from typing import Any

from hansa.common.job.spec import JobSpec
from hansa.common.values.views import JobView
from hansa.simulation.options import USUAL, Options
from hansa.simulation.prepare import prepare
from hansa.simulation.run import Simulation
from tests.golden.fleet import SITES, version_of
from tests.simulated import simulation


def simulate(folder: Path, job: dict[str, Any], app: str, options: Options = USUAL) -> JobView:
    """Simulate a job with the sites of a golden run."""
    return simulation(folder, {"validation": {"fraction": 0.25}} | job, app, SITES, options).run()


def simulate_digits(
    folder: Path, job: dict[str, Any], app: str, sites: int, options: Options = USUAL
) -> JobView:
    """Simulate a job with sites that share the digits."""
    folder.mkdir(exist_ok=True)
    spec = JobSpec.model_validate({"app": app, "seed": 11, "data": {"source": "digits"}} | job)
    return Simulation(prepare(spec, sites, folder), folder, options).run()


def golden(view: JobView) -> dict[str, Any]:
    """Return what golden values have of a job."""
    outcome = {"status": view.status, "versions": [version_of(entry) for entry in view.history]}
    return outcome if view.status == "completed" else outcome | {"reason": view.reason}
