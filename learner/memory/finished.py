"""Finished updates that must not be computed twice: they are kept until their receipts have arrived.

An update with secret randomness in it is the same if its task is done again, but only if the training repeats
bit for bit, which it need not do on a GPU. Two such updates would differ by what the noise was to hide.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hansa.common.models.checkpoints import about, as_model
from hansa.common.models.frames import Layout, views
from hansa.common.models.model import Manifest
from hansa.common.process import faults
from hansa.common.site.files import Files, job_file
from hansa.common.values.errors import InvalidInput, StoreFailed
from hansa.common.values.ids import JobId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.tasks import Task

log = logging.getLogger(__name__)
FOLDER = "finished"  # in the state directory
END = ".safetensors"
KEPT = 16  # jobs; a job may end before its last update is handed in, and learners are not told
TASK, MARK, FACTS = "hansa.task", "hansa.fingerprint", "hansa.facts"  # entries of a file


class Update(NamedTuple):
    """An update as it is handed in: a model's frames, and what is known about it."""

    manifest: Manifest
    payload: np.ndarray
    facts: UpdateFacts


class FinishedUpdates:
    """A finished update for each job, in a file."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def keep(self, task: Task, mark: str, update: Update) -> None:
        """Write an update; it must not be sent before it is written. `mark` is the task's fingerprint."""
        spec, name = update.manifest.spec, job_file(task.job, END)
        texts = about(spec) | {TASK: task.id, MARK: mark, FACTS: update.facts.model_dump_json()}
        try:
            self._files.write_tensors(name, views(Layout(spec), update.payload), texts)
            self._make_room()
        except OSError as error:
            raise StoreFailed(
                f"the update of task {task.id} has secret randomness in it and must not be sent before it is"
                f" written: {self._files.where(name)}: {error.strerror}"
            ) from None
        faults.reach("update-kept")

    def of(self, task: Task, mark: Callable[[], str]) -> Update | None:
        """Return the update of a task, if it is finished; forget one of another task of the job.

        `mark` returns the task's fingerprint, which takes longer than to see that there is no update.
        """
        name = job_file(task.job, END)
        if not self._files.exists(name):
            return None
        where = self._files.where(name)
        try:
            arrays, texts = self._files.read_tensors(name, frozen=True)
            if texts.get(MARK) == mark():
                manifest, payload = as_model(arrays, texts, where)
                return Update(manifest, payload, UpdateFacts.model_validate_json(texts[FACTS]))
        except (OSError, InvalidInput, KeyError, ValueError) as error:
            log.warning("%s: cannot be read: %s", where, error)
        self.drop(task.job)
        return None

    def drop(self, job: JobId) -> None:
        """Forget the update of a job: its receipt has arrived, or nobody waits for it."""
        self._files.delete(job_file(job, END))

    def _make_room(self) -> None:
        """Forget the updates that were finished longest ago."""
        for name in self._files.names()[:-KEPT]:
            self._files.delete(name)
