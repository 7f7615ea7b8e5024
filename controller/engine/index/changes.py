"""Changes of the history: which versions are new or have changed since somebody looked.

The marks count from the start of the process: they are for those who watch a job, not a part of its state.
"""

from array import array

import numpy as np


class Changes:
    """A mark for each version that says when its record changed last."""

    def __init__(self, versions: int) -> None:
        self.mark = 0  # of the newest change
        self._marks = array("Q", bytes(8 * versions))

    def note(self, version: int) -> None:
        """Note that a version is new, or that its record may have changed."""
        self.mark += 1
        self._marks.extend([0] * (version + 1 - len(self._marks)))
        self._marks[version] = self.mark

    def since(self, mark: int) -> list[int]:
        """Return the versions that have changed after a mark, in order."""
        if mark == self.mark:
            return []
        return [int(version) for version in np.flatnonzero(np.array(self._marks) > mark)]
