"""The installed controller's rulebook, which knows the parts of a job that cannot be combined.

The controller sits above this package, so the rulebook is found as an entry point instead of being imported.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Protocol, cast

from hansa.common.job.spec import JobSpec, Problem
from hansa.common.plugins import registry
from hansa.common.values.settings.training import Travel

GROUP = "hansa.rulebook"


def load() -> Callable[[JobSpec], list[Problem]]:
    """Register the rules known on this machine; return the function that lists which parts of a job clash."""
    (entry,) = entry_points(group=GROUP)
    return cast(Callable[[JobSpec], list[Problem]], entry.load())


class _Layers(Protocol):
    """The part `layers` of a job."""

    @property
    def travel(self) -> Travel:
        """Which tensors of the app's model travel."""


def travel_of(spec: JobSpec) -> Travel:
    """Return which tensors of the app's model travel; the job's rule and `layers` must be known here."""
    return cast(_Layers, registry.fill("layers", registry.rules()[spec.rule], spec.layers)).travel
