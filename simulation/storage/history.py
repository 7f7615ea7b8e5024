"""The history of a simulated job, in a file: a thousand rounds of a thousand sites would fill the memory.

Records are appended to the file, and appended again if they change later; what was written before stays as it
is. So a save needs to remember only where the records are, and how long the file was.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex, overload

from hansa.common.values.history import Version, VersionView
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.views import history_views
from hansa.controller.values.history import Records

NEWEST = 8  # versions that stay in memory: the job looks at them all the time
NOWHERE = -1, 0


@dataclass(frozen=True)
class SavedHistory:
    """Where the records were when the simulation was saved."""

    places: tuple[tuple[int, int], ...]  # offset and size
    end: int  # of the file


class FiledHistory(Records):
    """The records of a job's versions. One that was opened may be changed until `settle` is called."""

    def __init__(self, path: Path, saved: SavedHistory | None = None) -> None:
        """Begin a file, or go on from where a save has left one: what was written later is cut off."""
        path.parent.mkdir(parents=True, exist_ok=True)
        how = os.O_RDWR | os.O_CLOEXEC | (0 if saved else os.O_CREAT | os.O_TRUNC)
        self._file = os.open(path, how, 0o600)
        self._places = list(saved.places) if saved else []
        self._end = saved.end if saved else 0
        os.ftruncate(self._file, self._end)
        self._here: dict[int, Version] = {}  # the newest ones, and those that were opened

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def settle(self) -> None:
        """Write all but the newest records into the file; called while nobody changes any."""
        if len(self._here) > NEWEST:
            for number in [each for each in self._here if each < len(self._places) - NEWEST]:
                self._write(number)
                del self._here[number]

    def saved(self) -> SavedHistory:
        """Write everything into the file, and return what must be remembered of it."""
        for number in self._here:
            self._write(number)
        os.fsync(self._file)
        return SavedHistory(tuple(self._places), self._end)

    def first_of_last(self, bytes_: int) -> int:
        """Return the first of the last versions whose records take no more than so many bytes in the file."""
        number, newest = len(self._places), len(self._places) - NEWEST
        while number > 0 and (number > newest or (bytes_ := bytes_ - self._places[number - 1][1]) >= 0):
            number -= 1
        return number

    def _write(self, number: int) -> None:
        data = self._here[number].model_dump_json().encode()
        if data != self._stored(number):
            os.pwrite(self._file, data, self._end)
            self._places[number] = self._end, len(data)
            self._end += len(data)

    def _stored(self, number: int) -> bytes:
        at, size = self._places[number]
        return os.pread(self._file, size, at) if size else b""

    # A sequence, as the engine uses it.

    def __len__(self) -> int:
        return len(self._places)

    def append(self, version: Version) -> None:
        """Add the record of the next version."""
        self._here[len(self._places)] = version
        self._places.append(NOWHERE)

    def opened(self, version: int) -> Version:
        """Return the record of a version for the caller to change."""
        record = self._here[version] = self[version]
        return record

    @overload
    def __getitem__(self, which: SupportsIndex) -> Version: ...
    @overload
    def __getitem__(self, which: slice) -> list[Version]: ...
    def __getitem__(self, which: Any) -> Any:
        numbers = range(len(self._places))[which]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        if numbers in self._here:
            return self._here[numbers]
        return Version.model_validate_json(self._stored(numbers))


class Views(Sequence[VersionView]):
    """The versions of a job that has ended, as operators see them; each is read when it is looked at."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __len__(self) -> int:
        return len(self._machine.state.history)

    @overload
    def __getitem__(self, which: int) -> VersionView: ...
    @overload
    def __getitem__(self, which: slice) -> tuple[VersionView, ...]: ...
    def __getitem__(self, which: int | slice) -> VersionView | tuple[VersionView, ...]:
        numbers = range(len(self))[which]
        if isinstance(numbers, range):
            return tuple(self[number] for number in numbers)
        return next(history_views(self._machine, versions=[numbers]))
