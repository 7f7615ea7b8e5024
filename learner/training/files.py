"""What a learner keeps of each job across restarts in one small file."""

import logging
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from hansa.common.site.files import Files, job_file
from hansa.common.values.ids import JobId

log = logging.getLogger(__name__)
END = ".json"
KEPT = 1000  # jobs; learners are not told when a job ends
M = TypeVar("M", bound=BaseModel)


class JobFiles(Generic[M]):
    """A value for each job, in memory and in a file."""

    def __init__(self, files: Files, kind: type[M], what: str) -> None:
        """`what` names the values in the message when a file cannot be written."""
        self._files, self._kind, self._what = files, kind, what
        self._values: dict[JobId, M] = {}  # in memory as well: a full disk must not end training

    def __contains__(self, job: JobId) -> bool:
        """Whether a job's value is in memory."""
        return job in self._values

    def get(self, job: JobId) -> M | None:
        """Return a job's value, if there is one that can be read."""
        if job in self._values:
            return self._values[job]
        name = job_file(job, END)
        try:
            return self._kind.model_validate_json(self._files.read(name))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            why = error if isinstance(error, OSError) else "damaged"
            log.warning("%s: cannot be read (%s)", self._files.where(name), why)
            return None

    def put(self, job: JobId, value: M, durable: bool) -> None:
        """Replace a job's value."""
        self._values.pop(job, None)
        self._values[job] = value
        name = job_file(job, END)
        try:
            new = not self._files.exists(name)
            self._files.write(name, value.model_dump_json().encode(), durable)
            if new:
                self._make_room()
        except OSError as error:
            lost = f"a restart would lose {self._what}"
            log.error("%s: cannot be written: %s; %s", self._files.where(name), error.strerror, lost)  # noqa: TRY400

    def _make_room(self) -> None:
        """Forget the jobs whose values were written longest ago."""
        names = [name for name in self._files.names() if name.endswith(END)]
        for name in names[:-KEPT]:
            self._files.delete(name)
        while len(self._values) > KEPT:
            self._values.pop(next(iter(self._values)))
