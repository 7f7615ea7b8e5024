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

import numpy as np

from hansa.common.models.checkpoints import about, as_model
from hansa.common.models.model import Arrays, Manifest, ModelSpec
from hansa.common.process import faults
from hansa.common.site.files import Files, job_file
from hansa.common.torch.resident import Resident
from hansa.common.values.errors import InvalidInput, StoreFailed
from hansa.common.values.ids import JobId, TaskId
from hansa.common.values.tasks import Task

log = logging.getLogger(__name__)
PENDING, END = ".pending", ".safetensors"
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

    def __init__(self, files: Files) -> None:
        self._files = files

    def committed(self, job: JobId) -> Personal | None:
        """Return a job's tensors after the last update that was accepted, if they can be read."""
        name = _name(job)
        try:
            arrays, texts = self._files.read_tensors(name)
            return Personal(TaskId(texts[TASK]), arrays)
        except FileNotFoundError:
            return None
        except (OSError, InvalidInput, KeyError, ValueError) as error:
            why = error if isinstance(error, OSError | InvalidInput) else "damaged"
            log.warning("%s: cannot be used: %s", self._files.where(name), why)
            return None

    def begin(self, task: Task, after: str) -> Personal | None:
        """Return what a task starts from; `after` is the task of the site's last accepted update."""
        if after and self._task_of(_pending(task.job)) == after != self._task_of(_name(task.job)):
            self._commit(task.job)
        else:  # its update was never accepted, or its task is done again
            self._files.delete(_pending(task.job))
        personal = self.committed(task.job)
        if after and (personal is None or personal.task not in (after, task.id)):
            rest = (
                f"training goes on from those after task {personal.task}" if personal else "they start anew"
            )
            log.warning("job %s: the site's own tensors after task %s are lost; %s", *(task.job, after, rest))
        return personal

    def keep(self, task: Task, spec: ModelSpec, arrays: Arrays) -> None:
        """Write down the tensors after a task, until its receipt arrives."""
        pending = _pending(task.job)
        try:
            self._files.write_tensors(pending, arrays, about(spec) | {TASK: task.id})
        except OSError as error:  # an update without its other half must not be handed in
            raise StoreFailed(
                f"{self._files.where(pending)}: the site's own tensors cannot be written: {error.strerror};"
                " --personal names another folder"
            ) from None
        faults.reach("personal-kept")

    def commit(self, task: Task) -> None:
        """Take over the tensors after a task: the controller has its update, and the receipt has arrived."""
        if self._task_of(_pending(task.job)) == task.id != self._task_of(_name(task.job)):
            self._commit(task.job)
            faults.reach("personal-committed")

    def jobs(self) -> list[str]:
        """Return the jobs that the site has tensors of."""
        return sorted(name.removesuffix(END) for name in self._committed())

    def model(self, job: JobId) -> tuple[Manifest, np.ndarray]:
        """Return a job's committed tensors as a model's manifest and payload."""
        arrays, texts = self._files.read_tensors(_name(job), frozen=True)
        return as_model(arrays, texts, self._files.where(_name(job)))

    def _commit(self, job: JobId) -> None:
        is_new = not self._files.exists(_name(job))
        self._files.rename(_pending(job), _name(job))
        if is_new:
            for name in self._committed()[:-KEPT]:
                self._files.delete(name)

    def _committed(self) -> list[str]:
        """Return the files of committed tensors, the oldest first."""
        return [name for name in self._files.names() if name.endswith(END)]

    def _task_of(self, name: str) -> str:
        """Return the task that made a file's tensors."""
        try:
            return self._files.read_texts(name).get(TASK, "")
        except (OSError, InvalidInput):
            return ""


def _name(job: JobId) -> str:
    return job_file(job, END)


def _pending(job: JobId) -> str:
    return f"{PENDING}/{_name(job)}"
