"""Memory that the driver and its worker processes share, cut into slots of the sizes that are asked for.

The memory belongs to a file without a name, so nothing is left of it when the driver dies, however it dies.
Workers open it through the driver's process id.
"""

import mmap
import os
import threading
from collections import defaultdict
from dataclasses import dataclass

ALIGN = 4096
GROWTH = 64 << 20  # bytes by which it grows, at least


@dataclass(frozen=True)
class Slot:
    """A part of the slab."""

    at: int
    size: int


class Slab:
    """The driver's end: it hands out slots and takes them back."""

    def __init__(self) -> None:
        self._handle = os.memfd_create("hansa-models")
        self._size = 0
        self._end = 0  # of what was ever handed out
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # places by the size of the slot
        self.used = 0  # bytes in slots that are handed out
        # Garbage collection may give a slot back in the middle of `take`.
        self._lock = threading.RLock()
        self._view = View(self.path)

    @property
    def path(self) -> str:
        """Where other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def take(self, size: int) -> Slot:
        """Hand out a slot."""
        rounded = _rounded(size)
        with self._lock:
            self.used += rounded
            if self._free[rounded]:
                return Slot(self._free[rounded].pop(), size)
            at, self._end = self._end, self._end + rounded
            if self._end > self._size:
                self._size = self._end + max(GROWTH, self._size // 4)
                os.ftruncate(self._handle, self._size)
            return Slot(at, size)

    def give_back(self, slot: Slot) -> None:
        """Take a slot back."""
        rounded = _rounded(slot.size)
        with self._lock:
            self.used -= rounded
            self._free[rounded].append(slot.at)

    def memory(self, slot: Slot) -> memoryview:
        """Return the memory of a slot."""
        return self._view.memory(slot)

    def close(self) -> None:
        """Give up the memory."""
        if self._handle >= 0:
            self._view.close()
            os.close(self._handle)
            self._handle = -1


class View:
    """A process's view of a slab; it is mapped again when it has grown."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map: mmap.mmap | None = None

    def memory(self, slot: Slot) -> memoryview:
        """Return the memory of a slot. It stays valid: the old map lives as long as anybody looks at it."""
        if self._map is None or len(self._map) < slot.at + slot.size:
            self._map = mmap.mmap(self._handle, os.fstat(self._handle).st_size)
        return memoryview(self._map)[slot.at : slot.at + slot.size]

    def close(self) -> None:
        """Close the file; maps end with those who look at them."""
        self._map = None
        os.close(self._handle)


def _rounded(size: int) -> int:
    return max(1, -(-size // ALIGN)) * ALIGN
