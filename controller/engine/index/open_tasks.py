"""A job's open tasks: what sites have yet to return, found by site and subject without looking at all of them."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Evaluate, Task
from hansa.controller.engine.subjects import OfHop, OfUpdate, OfVersion, Subject

S = TypeVar("S", OfVersion, OfUpdate, OfHop)
BySite = dict[SiteName, dict[TaskId, Task]]


class OpenTasks:
    """An index over the tasks of a job's state; it can be made anew from them at any time."""

    def __init__(
        self,
        tasks: dict[TaskId, Task],
        subjects: Mapping[TaskId, Subject],
        learners: Mapping[SiteName, object],
    ) -> None:
        self._tasks, self._subjects = tasks, subjects
        self._learners = learners  # that are connected
        self._work: BySite = {}  # tasks of learners
        self._evaluations: BySite = {}  # tasks of evaluators
        self._awaited: dict[Subject, dict[TaskId, Task]] = {}  # evaluations of each
        self._at_work = 0  # connected learners that have a task
        for task in tasks.values():
            self._enter(task)

    def add(self, task: Task) -> None:
        """Enter a task; the subject of an evaluation is known by then."""
        self._tasks[task.id] = task
        self._enter(task)

    def _enter(self, task: Task) -> None:
        if isinstance(task.work, Evaluate):
            self._evaluations.setdefault(task.site, {})[task.id] = task
            self._awaited.setdefault(self._subjects[task.id], {})[task.id] = task
            return
        self._at_work += task.site not in self._work and task.site in self._learners
        self._work.setdefault(task.site, {})[task.id] = task

    def take(self, task_id: TaskId) -> Task | None:
        """Strike a task, if it is open, and return it."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return None
        index = self._evaluations if isinstance(task.work, Evaluate) else self._work
        del index[task.site][task.id]
        if not index[task.site]:
            del index[task.site]
            self._at_work -= index is self._work and task.site in self._learners
        if index is self._evaluations:
            subject = self._subjects[task.id]
            del self._awaited[subject][task.id]
            if not self._awaited[subject]:
                del self._awaited[subject]
        return task

    def learner_came(self, site: SiteName) -> None:
        """Take note that a learner is connected; say so once."""
        self._at_work += site in self._work

    def learner_went(self, site: SiteName) -> None:
        """Take note that a learner is gone; say so once."""
        self._at_work -= site in self._work

    @property
    def busy(self) -> AbstractSet[SiteName]:
        """The sites whose learner has a task; some may be away."""
        return self._work.keys()

    @property
    def somebody_works(self) -> bool:
        """Whether a learner that is connected has a task."""
        return self._at_work > 0

    def work(self, site: SiteName | None = None) -> list[Task]:
        """Return the tasks of one learner or of all, in the order in which they were given."""
        if site is not None:
            return list(self._work.get(site, {}).values())
        return [task for task in self._tasks.values() if not isinstance(task.work, Evaluate)]

    def evaluations(self, site: SiteName, *kinds: type[Subject]) -> list[Task]:
        """Return the evaluations that a site has yet to report, of all subjects or of some kinds."""
        tasks = self._evaluations.get(site, {}).values()
        return [task for task in tasks if not kinds or isinstance(self._subjects[task.id], kinds)]

    def evaluators(self, subject: Subject) -> AbstractSet[SiteName]:
        """Return the sites that have yet to report on a subject."""
        return {task.site for task in self.evaluations_of(subject)}

    def evaluations_of(self, *subjects: Subject) -> list[Task]:
        """Return the evaluations of some subjects that are yet to be reported."""
        return [task for subject in subjects for task in self._awaited.get(subject, {}).values()]

    def subjects(self, kind: type[S]) -> list[S]:
        """Return the subjects of a kind that somebody has yet to report on."""
        return [subject for subject in self._awaited if isinstance(subject, kind)]

    def evaluates(self, subject: Subject) -> bool:
        """Whether somebody has yet to report on a subject."""
        return subject in self._awaited

    @property
    def versions(self) -> list[int]:
        """The versions that somebody has yet to report on, in order."""
        return sorted(subject.version for subject in self.subjects(OfVersion))

    def of(self, site: SiteName) -> list[Task]:
        """Return all tasks of a site's daemons."""
        return [task for index in (self._work, self._evaluations) for task in index.get(site, {}).values()]
