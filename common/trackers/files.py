"""Versions as lines of a file: CSV or JSON. A line that an interruption has cut off is written again."""

import csv
import io
import json
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any

from hansa.common.process.files import write_whole
from hansa.common.trackers.base import Tracker, pooled_numbers
from hansa.common.values.documents import escaped, finite
from hansa.common.values.errors import InvalidInput
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView

FIRST = ("job", "version", "round")


class Lines(Tracker):
    """A file with a line for each version of one job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._job = ""

    def open(self, job: JobView) -> int:
        """Read which versions the file has; refuse a file of something else."""
        self._job = job.job
        try:
            if self._path.exists() and not self._path.is_file():
                raise InvalidInput(f"{self._path}: not a regular file; choose another one")
            text = self._path.read_bytes() if self._path.exists() else b""
            if not text:
                self._path.touch()
                return -1
            whole = text[: text.rfind(b"\n") + 1]
            newest = self._newest(whole.decode(errors="replace").splitlines(), text[len(whole) :])
            if whole != text:
                os.truncate(self._path, len(whole))
        except OSError as error:
            raise self._unusable(error) from None
        return newest

    def take(self, version: VersionView) -> None:
        """Append a line."""
        try:
            self._append(version)
        except OSError as error:
            raise self._unusable(error) from None

    def _newest(self, lines: list[str], rest: bytes) -> int:
        """Return the newest version of a file's lines; `rest` is a line that was cut off."""
        start = self._start().encode()
        foreign = f"{self._path}: not an export of a job; choose another file"
        if not lines and not (rest.startswith(start) or start.startswith(rest)):
            raise InvalidInput(foreign)
        try:
            name, version = self._last(lines) if lines else (self._job, -1)
        except (ValueError, LookupError, TypeError):
            raise InvalidInput(foreign) from None
        if name != self._job:
            raise InvalidInput(f"{self._path}: it has the versions of job {name}; choose another file")
        return version

    def _append(self, version: VersionView) -> None:
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._line(version))

    def _unusable(self, error: OSError) -> InvalidInput:
        return InvalidInput(f"{self._path}: cannot be written: {error.strerror}")

    @abstractmethod
    def _start(self) -> str:
        """Return how every such file begins."""

    @abstractmethod
    def _last(self, lines: list[str]) -> tuple[str, int]:
        """Return job and version of the last line."""

    @abstractmethod
    def _line(self, version: VersionView) -> str:
        """Return a version as a line."""


class JsonLines(Lines):
    """Every version as a JSON document, with all that is known of it."""

    def _start(self) -> str:
        return self._written({"job": self._job}).removesuffix("}\n")

    def _last(self, lines: list[str]) -> tuple[str, int]:
        last = json.loads(lines[-1])
        return str(last["job"]), int(last["version"])

    def _line(self, version: VersionView) -> str:
        return self._written({"job": self._job} | version.model_dump(mode="json"))

    def _written(self, document: dict[str, Any]) -> str:
        return escaped(finite(document)) + "\n"


class Csv(Lines):
    """Every version as a row of numbers. A number that is new becomes a column of all rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def _start(self) -> str:
        return ",".join(FIRST)

    def _last(self, lines: list[str]) -> tuple[str, int]:
        rows = list(csv.DictReader(lines))
        self._columns = next(csv.reader(lines))
        if self._columns[: len(FIRST)] != list(FIRST):
            raise ValueError(self._columns)
        return (rows[-1]["job"], int(rows[-1]["version"])) if rows else (self._job, -1)

    def _append(self, version: VersionView) -> None:
        row = self._row(version)
        if new := [name for name in row if name not in self._columns]:
            self._widen(self._columns + new)
        super()._append(version)

    def _line(self, version: VersionView) -> str:
        return _table(self._columns, [self._row(version)])

    def _row(self, version: VersionView) -> dict[str, Any]:
        place = {"job": self._job, "version": version.version, "round": version.round}
        return place | pooled_numbers(version) | place  # an app's metric may have such a name

    def _widen(self, columns: list[str]) -> None:
        """Write the file again with more columns; version 0, for example, has no metrics yet."""
        path = self._path.resolve()  # a link stays a link
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        whole = _table(columns, [dict(zip(columns, columns, strict=True)), *rows])
        write_whole(path, whole.encode(), path.stat().st_mode & 0o777)
        self._columns = columns


def _table(columns: list[str], rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
