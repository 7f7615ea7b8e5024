"""Hansa: federated learning for heterogeneous sites.

Users write an `App` (their model and, if they wish, their data and training); everything else is
configuration. The public names are here, in `hansa.plugin` (rules and plugins), in `hansa.data` (data sets
and their partitions) and in `hansa.trial` (federations from a script). Other modules may change with every
version.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hansa.common.app import App, TrainingRun
    from hansa.common.client.asynchronous import AsyncClient
    from hansa.common.client.blocking import Client, Job
    from hansa.common.client.job import AsyncJob
    from hansa.common.data.examples import Examples, load_npz
    from hansa.common.run.api import run
    from hansa.common.values.errors import HansaError, JobCancelled, JobFailed
    from hansa.common.values.history import VersionView
    from hansa.common.values.results import Evaluation
    from hansa.common.values.views import JobView
    from hansa.simulation.api import simulate
    from hansa.simulation.sweep.api import sweep

__version__ = "0.1.0"
__all__ = [
    "App",
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Evaluation",
    "Examples",
    "HansaError",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobView",
    "TrainingRun",
    "VersionView",
    "__version__",
    "load_npz",
    "run",
    "simulate",
    "sweep",
]

_HOMES = {
    "App": "common.app",
    "AsyncClient": "common.client.asynchronous",
    "AsyncJob": "common.client.job",
    "Client": "common.client.blocking",
    "Evaluation": "common.values.results",
    "Examples": "common.data.examples",
    "HansaError": "common.values.errors",
    "Job": "common.client.blocking",
    "JobCancelled": "common.values.errors",
    "JobFailed": "common.values.errors",
    "JobView": "common.values.views",
    "TrainingRun": "common.app",
    "VersionView": "common.values.history",
    "load_npz": "common.data.examples",
    "run": "common.run.api",
    "simulate": "simulation.api",
    "sweep": "simulation.sweep.api",
}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import hansa` costs nothing."""
    if name in _HOMES:
        return getattr(import_module(f"hansa.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hansa' has no attribute {name!r}")
