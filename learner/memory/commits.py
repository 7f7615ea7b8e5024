"""What a receipt changes in a site's memory."""

from hansa.common.site.files import Files
from hansa.common.site.personal import PersonalFolder
from hansa.common.values.tasks import Task
from hansa.learner.memory import finished
from hansa.learner.memory.finished import FinishedUpdates
from hansa.learner.training.window import Windows


def commit(task: Task, windows: Windows, personal: PersonalFolder, done: FinishedUpdates) -> None:
    """Commit what the site keeps of a task, and forget the finished update: the controller has it."""
    windows.commit(task)
    personal.commit(task)
    done.drop(task.job)


def commit_in(files: Files, personal: Files, task: Task) -> None:
    """Commit a task in the files of a learner that is not running."""
    done = FinishedUpdates(files.folder(finished.FOLDER))
    commit(task, Windows(files), PersonalFolder(personal), done)
