"""Simulated jobs for tests: small apps, a data file for each site, everything in one process unless asked."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hansa.common.app import load_app
from hansa.common.job.spec import JobSpec
from hansa.common.values.views import JobView
from hansa.simulation.options import Options
from hansa.simulation.run import Simulation
from hansa.simulation.sites.data import FileForEach
from hansa.simulation.sites.prepare import Prepared


def simulation(
    folder: Path,
    job: dict[str, Any],
    app: str,
    sites: Sequence[str],
    options: Options | None = None,
    changed: Callable[[], None] = lambda: None,
) -> Simulation:
    """Return a simulation whose sites have their numbers as data, as the golden apps expect."""
    (folder / "simulated").mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(sites):
        (folder / name).write_text(str(number))
    data = FileForEach({name: folder / name for name in sites}, "validation")
    spec = JobSpec.model_validate({"app": app, "seed": 11, "sites": {"min": len(sites)}} | job)
    prepared = Prepared(spec, load_app(app), data)
    return Simulation(prepared, folder / "simulated", options or Options(), changed)


def history(view: JobView) -> list[Any]:
    """Return all that two simulations of a job must agree on."""
    assert view.status == "completed", view.reason
    versions = [entry.model_dump(exclude={"updates", "receipt", "personal"}) for entry in view.history]
    updates = [
        [update.model_dump(exclude={"task"}) for update in entry.updates] for entry in view.history
    ]  # task ids, and so receipts, begin with the job's own id
    return [view.seconds, view.reason, *zip(map(str, versions), map(str, updates), strict=True)]
