"""Finished updates that must not be computed twice: they are kept until their receipts have arrived.

An update with secret randomness in it is the same if its task is done again, but only if the training repeats
bit for bit, which it need not do on a GPU. Two such updates would differ by what the noise was to hide.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hansa.common.models.checkpoints import about, load_checkpoint
from hansa.common.models.frames import Layout, views
from hansa.common.models.model import Manifest
from hansa.common.models.tensor_files import read_tensors, write_tensors
from hansa.common.process import faults
from hansa.common.values.errors import InvalidInput, StoreFailed
from hansa.common.values.ids import NAME, JobId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task

log = logging.getLogger(__name__)
FOLDER = "finished"  # in the state directory
KEPT = 16  # jobs; a job may end before its last update is handed in, and learners are not told
TASK, MARK, FACTS = "hansa.task", "hansa.fingerprint", "hansa.facts"  # entries of a file


class Update(NamedTuple):
    """An update as it is handed in: a model's frames, and what is known about it."""

    manifest: Manifest
    payload: np.ndarray
    facts: UpdateFacts


class FinishedUpdates:
    """A finished update for each job, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, task: Task, mark: str, update: Update) -> None:
        """Write an update; it must not be sent before it is written. `mark` is the task's fingerprint."""
        spec = update.manifest.spec
        texts = about(spec) | {TASK: task.id, MARK: mark, FACTS: update.facts.model_dump_json()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_tensors(self._path(task.job), views(Layout(spec), update.payload), texts, 0o600)
            self._make_room()
        except OSError as error:
            raise StoreFailed(
                f"the update of task {task.id} has secret randomness in it and must not be sent before it is"
                f" written: {self._path(task.job)}: {error.strerror}"
            ) from None
        faults.reach("update-kept")

    def of(self, task: Task, mark: str) -> Update | None:
        """Return the update of a task, if it is finished; forget one of another task of the job."""
        path = self._path(task.job)
        if not path.exists():
            return None
        try:
            _, texts = read_tensors(path)
            if texts.get(MARK) == mark:
                manifest, payload = load_checkpoint(path)
                return Update(manifest, payload, UpdateFacts.model_validate_json(texts[FACTS]))
        except (OSError, InvalidInput, KeyError, ValueError) as error:
            log.warning("%s: cannot be read: %s", path, error)
        self.drop(task.job)
        return None

    def drop(self, job: JobId) -> None:
        """Forget the update of a job: its receipt has arrived, or nobody waits for it."""
        self._path(job).unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Forget the updates that were finished longest ago."""
        paths = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[:-KEPT]:
            path.unlink(missing_ok=True)

    def _path(self, job: JobId) -> Path:
        if not NAME.fullmatch(job):
            raise InvalidInput(f"{job!r} is not a job id")
        return self._folder / f"{job}.safetensors"
