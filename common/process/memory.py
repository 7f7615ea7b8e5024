"""How this process manages its memory."""

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Let glibc keep freed frames for the next ones.

    By default every buffer of a megabyte is mapped anew, zeroed page by page and unmapped again, which costs
    more than filling it. There is only one arena, so that one thread can use what another has freed. Without
    glibc nothing happens.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest value that it accepts
    mallopt(M_TRIM_THRESHOLD, 256 << 20)
    mallopt(M_ARENA_MAX, 1)


@contextmanager
def young_garbage_only() -> Iterator[None]:
    """Let the garbage collector pass over whatever is in memory already.

    PyTorch and the other libraries have half a million objects, and every full collection looks at each.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Buffers:
    """Large buffers that are reused once no view of them is left."""

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._buffers: list[np.ndarray] = []
        self._lent: list[weakref.ref[np.ndarray] | None] = []

    def take(self, size: int) -> np.ndarray:
        """Return `size` bytes with arbitrary contents."""
        for i, (buffer, lent) in enumerate(zip(self._buffers, self._lent, strict=True)):
            if len(buffer) == size and (lent is None or lent() is None):
                return self._lend(i)
        if len(self._buffers) == self._most:
            del self._buffers[0], self._lent[0]
        self._buffers.append(np.empty(size, dtype=np.uint8))
        self._lent.append(None)
        return self._lend(-1)

    def _lend(self, i: int) -> np.ndarray:
        # An array made from a buffer is the base of all its views, so it lives as long as the last of them.
        lent = np.frombuffer(self._buffers[i].data, dtype=np.uint8)
        self._lent[i] = weakref.ref(lent)
        return lent
