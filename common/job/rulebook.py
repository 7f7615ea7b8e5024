"""The installed controller's rulebook, which knows the parts of a job that cannot be combined.

The controller sits above this package, so the rulebook is found as an entry point instead of being imported.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from hansa.common.job.spec import JobSpec, Problem

GROUP = "hansa.rulebook"


def load() -> Callable[[JobSpec], list[Problem]]:
    """Register the rules known on this machine; return the function that lists which parts of a job clash."""
    (entry,) = entry_points(group=GROUP)
    return cast(Callable[[JobSpec], list[Problem]], entry.load())
