"""A job's memory as text, so that a restart need not replay every event.

The history grows with the job; it is cut into chapters, and a snapshot holds only those that have changed
since the last one. A journal replaces the old chapters by the new ones, all at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    """A job's memory as of an event."""

    sequence: int
    state: str  # JSON
    chapters: Mapping[int, str]  # JSON, by number
