"""What a learner keeps of each job in its state directory across restarts: one small file."""

import logging
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from hansa.common.process.files import write_whole
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import NAME, JobId

log = logging.getLogger(__name__)
KEPT = 1000  # jobs; learners are not told when a job ends
M = TypeVar("M", bound=BaseModel)


class JobFiles(Generic[M]):
    """A value for each job, in memory and in a folder of files."""

    def __init__(self, folder: Path, kind: type[M], what: str) -> None:
        """`what` names the values in the message when a file cannot be written."""
        self._folder, self._kind, self._what = folder, kind, what
        self._values: dict[JobId, M] = {}  # in memory as well: a full disk must not end training

    def __contains__(self, job: JobId) -> bool:
        """Whether a job's value is in memory."""
        return job in self._values

    def get(self, job: JobId) -> M | None:
        """Return a job's value, if there is one that can be read."""
        if job in self._values:
            return self._values[job]
        path = self._path(job)
        try:
            return self._kind.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("%s: cannot be read (%s)", path, error if isinstance(error, OSError) else "damaged")
            return None

    def put(self, job: JobId, value: M, durable: bool) -> None:
        """Replace a job's value."""
        self._values.pop(job, None)
        self._values[job] = value
        path = self._path(job)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = not path.exists()
            write_whole(path, value.model_dump_json().encode(), 0o600, durable)
            if new:
                self._make_room()
        except OSError as error:
            log.error("%s: cannot be written: %s; a restart would lose %s", path, error.strerror, self._what)  # noqa: TRY400

    def _make_room(self) -> None:
        """Forget the jobs whose values were written longest ago."""
        paths = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[:-KEPT]:
            path.unlink(missing_ok=True)
        while len(self._values) > KEPT:
            self._values.pop(next(iter(self._values)))

    def _path(self, job: JobId) -> Path:
        if not NAME.fullmatch(job):
            raise InvalidInput(f"{job!r} is not a job id")
        return self._folder / f"{job}.json"
