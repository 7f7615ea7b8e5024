"""A site's small files, in which it keeps what it needs from task to task: the contract, and a disk."""

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hansa.common.models import tensor_files
from hansa.common.models.model import Arrays
from hansa.common.process.files import sync_folder, write_whole
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import NAME

Tensors = tuple[dict[str, np.ndarray], dict[str, str]]  # arrays, and texts beside them


class Files(ABC):
    """Files by name. A name may begin with folders (`memory/j1/j1-3.safetensors`), which need not exist yet.

    A write replaces a file as a whole: readers see the old one or the new one. If it is `durable`, the file
    survives a crash of the machine once the call has returned. What is missing raises FileNotFoundError, and
    whatever else a disk refuses another OSError. What was written as tensors is read as tensors; InvalidInput
    says that a file holds none.
    """

    @abstractmethod
    def folder(self, name: str) -> "Files":
        """Return the files in a folder, under their names in it."""

    @abstractmethod
    def where(self, name: str) -> str:
        """Return what messages call a file."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return what a file holds."""

    @abstractmethod
    def write(self, name: str, content: bytes, durable: bool = True) -> None:
        """Write a file."""

    @abstractmethod
    def read_tensors(self, name: str, frozen: bool = False) -> Tensors:
        """Return a file's arrays and texts.

        The arrays may be changed, which changes neither the file nor what others read. `Frozen` ones are for
        looking at only, and are never copied.
        """

    @abstractmethod
    def read_texts(self, name: str) -> dict[str, str]:
        """Return the texts beside a file's arrays, without reading these."""

    @abstractmethod
    def write_tensors(
        self, name: str, arrays: Arrays, texts: Mapping[str, str], durable: bool = True
    ) -> None:
        """Write arrays of data types that models can have, and texts; the arrays may be changed later."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file or a folder of this name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file, or a folder with everything in it, if it is there."""

    @abstractmethod
    def rename(self, name: str, new: str) -> None:
        """Give a file another name, durably; a file that has it is replaced."""

    @abstractmethod
    def link(self, name: str, new: str) -> None:
        """Give a file a second name, durably and without a copy; OSError where there are no links."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Return the names of files and folders in a folder, those changed longest ago first."""

    @abstractmethod
    def age(self, name: str) -> float:
        """Return the seconds since a file or a folder was changed."""


class DiskFiles(Files):
    """Files in a folder of a disk, for their owner only. Tensors are in safetensors files."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._root, self._clock = root, clock

    def folder(self, name: str) -> "DiskFiles":
        """Return the files in a folder."""
        return DiskFiles(self._root / name, self._clock)

    def where(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._root / name)

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        return (self._root / name).read_bytes()

    def write(self, name: str, content: bytes, durable: bool = True) -> None:
        """Write a file."""
        write_whole(self._place(name), content, 0o600, durable)

    def read_tensors(self, name: str, frozen: bool = False) -> Tensors:
        """Return a file's arrays and texts; the arrays are read as they are used."""
        arrays, texts = tensor_files.read_tensors(self._root / name)
        for array in arrays.values() if frozen else ():
            array.flags.writeable = False
        return arrays, texts

    def read_texts(self, name: str) -> dict[str, str]:
        """Return the texts beside a file's arrays; only its head is read."""
        return tensor_files.read_texts(self._root / name)

    def write_tensors(
        self, name: str, arrays: Arrays, texts: Mapping[str, str], durable: bool = True
    ) -> None:
        """Write arrays and texts."""
        tensor_files.write_tensors(self._place(name), arrays, texts, 0o600, durable)

    def exists(self, name: str) -> bool:
        """Whether there is a file or a folder of this name."""
        return (self._root / name).exists()

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with everything in it, if it is there."""
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name."""
        path = self._place(new)
        (self._root / name).replace(path)
        sync_folder(path.parent)

    def link(self, name: str, new: str) -> None:
        """Give a file a second name; OSError if the file system has no links."""
        path = self._place(new)
        os.link(self._root / name, path)
        sync_folder(path.parent)

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, those changed longest ago first."""
        place = self._root / folder
        if not place.exists():
            return []
        return [path.name for path in sorted(place.iterdir(), key=lambda path: path.stat().st_mtime_ns)]

    def age(self, name: str) -> float:
        """Return the seconds since a file or a folder was changed."""
        return self._clock() - (self._root / name).stat().st_mtime

    def _place(self, name: str) -> Path:
        """Return the path of a file that is about to be written."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path


def job_file(job: str, end: str) -> str:
    """Return the name of a job's file or, with an `end` that begins with a slash, of one in its folder."""
    if not NAME.fullmatch(job):
        raise InvalidInput(f"{job!r} is not a job id")
    return job + end
