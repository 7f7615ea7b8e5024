"""What a virtual site remembers from task to task, as a value: whoever does its next task goes on from it."""

from dataclasses import dataclass, field

from hansa.common.site.memory_files import MemoryFiles
from hansa.common.values.ids import JobId
from hansa.common.values.tasks import Task
from hansa.learner.memory.commits import commit_in
from hansa.learner.trainer import Trainer
from hansa.learner.training.memory import PlainMemory

PERSONAL = "personal"


@dataclass(frozen=True)
class SiteMemory:
    """A site's files, and the optimizer's memory. Nothing in it is ever changed: a task makes another one."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    optimizer: PlainMemory | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of its files and, roughly, of what the optimizer remembers."""
        known = (self.optimizer.before, self.optimizer.after) if self.optimizer else ()
        arrays = [
            each
            for states, statistics in known
            for state in (*states.values(), statistics)
            for each in state.values()
        ]
        return self.files.nbytes + sum(getattr(each, "nbytes", 0) for each in arrays)

    @property
    def restarted(self) -> "SiteMemory":
        """The memory after the learner was stopped and started again: what is on its disk."""
        return SiteMemory(self.files)

    def committed(self, task: Task) -> "SiteMemory":
        """Return the memory once the receipt of a task has arrived."""
        files = self.files.copy()
        commit_in(files, files.folder(PERSONAL), task)
        return SiteMemory(files, self.optimizer)


def memory_after(trainer: Trainer, files: MemoryFiles, job: JobId) -> SiteMemory | None:
    """Return what a site remembers after a task; None: nothing."""
    optimizer = trainer.jobs.memory(job)
    return SiteMemory(files, optimizer) if optimizer or files.names() else None
