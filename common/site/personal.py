"""The site's own tensors of each job, in a folder that learner and evaluator share (personal-models §2).

    JOB.safetensors            the tensors after the site's last update for which there is a receipt
    .pending/JOB.safetensors   those after a task whose receipt has not arrived

The learner writes, and the evaluator reads. A receipt turns the pending tensors into the committed ones by
renaming the file. If the receipt does not arrive, the next task says which update was accepted last
(`Train.after`), as for what plugins remember. So the tensors are always those of the last accepted update,
whenever a process is killed.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors

from hansa.common.models.checkpoints import about
from hansa.common.models.model import Arrays, ModelSpec
from hansa.common.models.tensor_files import read_tensors, write_tensors
from hansa.common.process import faults
from hansa.common.process.files import sync_folder
from hansa.common.torch.resident import Resident
from hansa.common.values.errors import InvalidInput, StoreFailed
from hansa.common.values.ids import NAME, JobId, TaskId
from hansa.common.values.tasks import Task

log = logging.getLogger(__name__)
PENDING = ".pending"
TASK = "hansa.task"  # the metadata entry that says which task made the tensors
KEPT = 1000  # jobs; sites are not told when a job ends


@dataclass(frozen=True)
class Personal:
    """The site's own tensors of a job, and the task that made them."""

    task: TaskId
    arrays: Arrays


def own_tensors(resident: Resident, personal: Personal | None) -> dict[str, np.ndarray]:
    """Return the site's own tensors; those that it does not have yet are as the app begins with them.

    Tensors that are not personal in this task are left out, even if an earlier task has kept them: a
    controller that says something else about the same job must not get them.
    """
    known = personal.arrays if personal else {}
    tensors = {name: known.get(name, first) for name, first in resident.initial.items()}
    for name, first in resident.initial.items():
        if tensors[name].shape != first.shape:
            lost = f"{list(tensors[name].shape)}, not {list(first.shape)} as in the app's model"
            log.warning("the site's own tensor %s has the shape %s; it starts anew", name, lost)
            tensors[name] = first
    return tensors


class PersonalFolder:
    """The personal tensors of a site's jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def committed(self, job: JobId) -> Personal | None:
        """Return a job's tensors after the last update that was accepted, if they can be read."""
        path = self.path(job)
        try:
            arrays, texts = read_tensors(path)
            return Personal(TaskId(texts[TASK]), arrays)
        except FileNotFoundError:
            return None
        except (OSError, InvalidInput, KeyError, ValueError) as error:
            why = error if isinstance(error, OSError | InvalidInput) else "damaged"
            log.warning("%s: cannot be used: %s", path, why)
            return None

    def begin(self, task: Task, after: str) -> Personal | None:
        """Return what a task starts from; `after` is the task of the site's last accepted update."""
        pending, path = self.path(task.job, PENDING), self.path(task.job)
        if after and _task_of(pending) == after != _task_of(path):
            self._commit(pending, path)
        else:  # its update was never accepted, or its task is done again
            pending.unlink(missing_ok=True)
        personal = self.committed(task.job)
        if after and (personal is None or personal.task not in (after, task.id)):
            rest = (
                f"training goes on from those after task {personal.task}" if personal else "they start anew"
            )
            log.warning("job %s: the site's own tensors after task %s are lost; %s", *(task.job, after, rest))
        return personal

    def keep(self, task: Task, spec: ModelSpec, arrays: Arrays) -> None:
        """Write down the tensors after a task, until its receipt arrives."""
        pending = self.path(task.job, PENDING)
        try:
            pending.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_tensors(pending, arrays, about(spec) | {TASK: task.id}, 0o600)
        except OSError as error:  # an update without its other half must not be handed in
            raise StoreFailed(
                f"{pending}: the site's own tensors cannot be written: {error.strerror}; --personal names"
                " another folder"
            ) from None
        faults.reach("personal-kept")

    def commit(self, task: Task) -> None:
        """Take over the tensors after a task: the controller has its update, and the receipt has arrived."""
        pending, path = self.path(task.job, PENDING), self.path(task.job)
        if _task_of(pending) == task.id != _task_of(path):
            self._commit(pending, path)
            faults.reach("personal-committed")

    def _commit(self, pending: Path, path: Path) -> None:
        is_new = not path.exists()
        pending.replace(path)
        sync_folder(self._folder)
        if is_new:
            files = sorted(self._folder.glob("*.safetensors"), key=lambda each: each.stat().st_mtime_ns)
            for old in files[:-KEPT]:
                old.unlink(missing_ok=True)

    def jobs(self) -> list[str]:
        """Return the jobs that the site has tensors of."""
        return sorted(path.stem for path in self._folder.glob("*.safetensors"))

    def path(self, job: JobId, subfolder: str = "") -> Path:
        """Return the file of a job."""
        if not NAME.fullmatch(job):
            raise InvalidInput(f"{job!r} is not a job id")
        return self._folder / subfolder / f"{job}.safetensors"


def _task_of(path: Path) -> str:
    """Return the task that made a file's tensors; only its head is read."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return str((file.metadata() or {}).get(TASK, ""))
    except (OSError, safetensors.SafetensorError):
        return ""
