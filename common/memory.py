"""How this process keeps its memory."""

import ctypes
import sys

import numpy as np

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def keep_freed_memory(arenas: int = 2) -> None:
    """Let glibc keep freed frames for the next ones.

    By default every buffer of a megabyte is mapped anew, zeroed page by page, and unmapped again, which costs more than
    filling it. Few arenas, so that what one thread frees another can use. Elsewhere than on glibc nothing happens.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most it takes
    mallopt(M_TRIM_THRESHOLD, 256 << 20)
    mallopt(M_ARENA_MAX, arenas)


class Buffers:
    """Large buffers that are used again once nobody holds a view of them any more."""

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._made: list[np.ndarray] = []

    def take(self, size: int) -> np.ndarray:
        """Return `size` bytes with any contents."""
        for i, buffer in enumerate(self._made):
            # Three references: the list's, this loop's, and the call's own. A view would be a fourth.
            if len(buffer) == size and sys.getrefcount(buffer) <= 3:
                self._made.append(self._made.pop(i))
                return buffer
        made = np.empty(size, dtype=np.uint8)
        self._made = [*self._made, made][-self._most :]
        return made
