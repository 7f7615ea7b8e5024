"""Spare files: files of deleted models, which new drafts overwrite.

Their blocks on disk and pages in memory exist already, which saves more time than the writing takes.
"""

import os
import secrets
import threading
from collections import Counter
from pathlib import Path

SPARES = 512 << 20  # bytes of files that are kept for future drafts


class Spares:
    """Files of deleted models that have no readers left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._readers: Counter[int] = Counter()  # by inode: a key may have had several files
        self._free: dict[Path, int] = {}  # with their sizes

    @property
    def readers(self) -> int:
        """How many files are open for reading."""
        with self._lock:
            return self._readers.total()

    def open(self, path: Path) -> int:
        """Open a file for reading; it is not overwritten while it is open."""
        with self._lock:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._readers[os.fstat(handle).st_ino] += 1
            return handle

    def leave(self, handle: int) -> None:
        """Close a file that was opened for reading."""
        with self._lock:
            inode = os.fstat(handle).st_ino
            self._readers[inode] -= 1
            if not self._readers[inode]:
                del self._readers[inode]
            os.close(handle)

    def retire(self, path: Path) -> None:
        """Remove a model's file, or keep it as a spare."""
        with self._lock:
            stat = path.stat()
            if self._readers[stat.st_ino] or sum(self._free.values()) + stat.st_size > SPARES:
                path.unlink()
            else:
                self._free[path.replace(self._folder / secrets.token_hex(8))] = stat.st_size

    def clear(self) -> None:
        """Remove all spares."""
        with self._lock:
            for path in self._free:
                path.unlink(missing_ok=True)
            self._free = {}

    def take(self, size: int) -> Path | None:
        """Return a spare of about the right size, if there is one; else drop the oldest if room is short."""
        with self._lock:
            for path, spare in self._free.items():
                if size <= spare <= 2 * size + 4096:
                    del self._free[path]
                    return path
            if self._free and sum(self._free.values()) + size > SPARES:
                oldest = next(iter(self._free))
                del self._free[oldest]
                oldest.unlink()
        return None
