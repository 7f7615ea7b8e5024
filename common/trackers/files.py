"""Versions as lines of a file: CSV or JSON. A line that an interruption has cut off is written again."""

import csv
import io
import json
from pathlib import Path

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
            text = self._path.read_bytes() if self._path.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            if whole != text:
                self._path.write_bytes(whole)
        except OSError as error:
            raise InvalidInput(f"{self._path}: cannot be written: {error.strerror}") from None
        lines = whole.decode(errors="replace").splitlines()
        try:
            name, version = self._last(lines) if lines else (job.job, -1)
        except (ValueError, LookupError, TypeError):
            raise InvalidInput(f"{self._path}: not an export of a job; choose another file") from None
        if name != job.job:
            raise InvalidInput(f"{self._path}: it has the versions of job {name}; choose another file")
        return version

    def take(self, version: VersionView) -> None:
        """Append a line."""
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._line(version))
        except OSError as error:
            raise InvalidInput(f"{self._path}: cannot be written: {error.strerror}") from None

    def _last(self, lines: list[str]) -> tuple[str, int]:
        raise NotImplementedError

    def _line(self, version: VersionView) -> str:
        raise NotImplementedError


class JsonLines(Lines):
    """Every version as a JSON document, with all that is known of it."""

    def _last(self, lines: list[str]) -> tuple[str, int]:
        last = json.loads(lines[-1])
        return str(last["job"]), int(last["version"])

    def _line(self, version: VersionView) -> str:
        return escaped(finite({"job": self._job} | version.model_dump(mode="json"))) + "\n"


class Csv(Lines):
    """Every version as a row of numbers. The columns are those of the first version."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def _last(self, lines: list[str]) -> tuple[str, int]:
        rows = list(csv.DictReader(lines))
        self._columns = next(csv.reader(lines))
        if self._columns[: len(FIRST)] != list(FIRST):
            raise ValueError(self._columns)
        return (rows[-1]["job"], int(rows[-1]["version"])) if rows else (self._job, -1)

    def _line(self, version: VersionView) -> str:
        place = {"job": self._job, "version": version.version, "round": version.round}
        row = place | pooled_numbers(version)
        text = io.StringIO()
        if not self._columns:
            self._columns = list(row)
            csv.writer(text, lineterminator="\n").writerow(self._columns)
        csv.DictWriter(text, self._columns, lineterminator="\n", extrasaction="ignore").writerow(row)
        return text.getvalue()
