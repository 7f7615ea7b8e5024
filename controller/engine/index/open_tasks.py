"""A job's open tasks: what sites have yet to return, indexed by site and by subject."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Evaluate, Task
from hansa.controller.engine.subjects import OfHop, OfUpdate, OfVersion, Subject

S = TypeVar("S", OfVersion, OfUpdate, OfHop)
BySite = dict[SiteName, dict[TaskId, Task]]


class OpenTasks:
    """An index over the tasks in a job's state; it can be rebuilt from the state at any time."""

    def __init__(
        self,
        tasks: dict[TaskId, Task],
        subjects: Mapping[TaskId, Subject],
        learners: Mapping[SiteName, object],
    ) -> None:
        self._tasks, self._subjects = tasks, subjects
        self._learners = learners  # connected ones only
        self._work: BySite = {}  # tasks of learners
        self._evaluations: BySite = {}  # tasks of evaluators
        self._awaited: dict[Subject, dict[TaskId, Task]] = {}  # open evaluations by subject
        self._at_work = 0  # how many connected learners have a task
        for task in tasks.values():
            self._enter(task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenTasks) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def add(self, task: Task) -> None:
        """Enter a task. The subject of an evaluation must be known by then."""
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
        """Remove a task and return it; return None if it is not open."""
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

    def learner_connected(self, site: SiteName) -> None:
        """Note that a learner has connected; call this once for each connection."""
        self._at_work += site in self._work

    def learner_gone(self, site: SiteName) -> None:
        """Note that a learner is gone; call this once for each departure."""
        self._at_work -= site in self._work

    @property
    def busy(self) -> AbstractSet[SiteName]:
        """The sites whose learner has a task, connected or not."""
        return self._work.keys()

    @property
    def anyone_works(self) -> bool:
        """Whether any connected learner has a task."""
        return self._at_work > 0

    def work(self, site: SiteName | None = None) -> list[Task]:
        """Return the tasks of one learner, or of all learners, in the order in which they were issued."""
        if site is not None:
            return list(self._work.get(site, {}).values())
        return [task for task in self._tasks.values() if not isinstance(task.work, Evaluate)]

    def evaluations(self, site: SiteName, *kinds: type[Subject]) -> list[Task]:
        """Return the evaluations that a site has yet to report, of all subjects or only of some kinds."""
        tasks = self._evaluations.get(site, {}).values()
        return [task for task in tasks if not kinds or isinstance(self._subjects[task.id], kinds)]

    def evaluators(self, subject: Subject) -> AbstractSet[SiteName]:
        """Return the sites that have yet to report on a subject."""
        return {task.site for task in self.evaluations_of(subject)}

    def evaluations_of(self, *subjects: Subject) -> list[Task]:
        """Return the open evaluations of some subjects."""
        return [task for subject in subjects for task in self._awaited.get(subject, {}).values()]

    def subjects(self, kind: type[S]) -> list[S]:
        """Return the subjects of a kind that have open evaluations."""
        return [subject for subject in self._awaited if isinstance(subject, kind)]

    def awaits(self, subject: Subject) -> bool:
        """Whether any site has yet to report on a subject."""
        return subject in self._awaited

    @property
    def versions(self) -> list[int]:
        """The versions that have open evaluations, in order."""
        return sorted(subject.version for subject in self.subjects(OfVersion))

    def of(self, site: SiteName) -> list[Task]:
        """Return all tasks of a site: those of its learner, then those of its evaluator."""
        return [task for index in (self._work, self._evaluations) for task in index.get(site, {}).values()]
