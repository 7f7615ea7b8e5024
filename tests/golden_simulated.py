"""Simulations of golden jobs, and of jobs with rows of the digits, in the process of a test."""

from pathlib import Path
from typing import Any

from hansa.common.job.spec import JobSpec
from hansa.common.values.views import JobView
from hansa.simulation.options import USUAL, Options
from hansa.simulation.run import Simulation
from hansa.simulation.sites.prepare import prepare
from tests import poisoned_app
from tests.golden.fleet import SITES, version_of
from tests.simulated import simulation

POISONED = f"{poisoned_app.__file__}:app"


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


def poison_in(folder: Path, how_often: str) -> Path:
    """Let site s3 of the poisoned app end its process, "once" or "always"; return the file that does it."""
    folder.mkdir(exist_ok=True)
    (folder / "poison").write_text(how_often)
    return folder / "poison"
