"""Which parts of a job do not go together: the rulebook of the installed controller says it.

The controller sits above this package, so the rulebook is found as an entry point instead of being imported.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from hansa.common.job.spec import JobSpec, Problem

GROUP = "hansa.rulebook"


def load() -> Callable[[JobSpec], list[Problem]]:
    """Register the rules that are known on this machine; return what says which parts of a job clash, and why."""
    (entry,) = entry_points(group=GROUP)
    return cast(Callable[[JobSpec], list[Problem]], entry.load())
