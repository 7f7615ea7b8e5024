"""The desk: a job's open tasks, found by site, kind and version without looking at all of them."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Evaluate, Task


class Desk:
    """An index over the tasks of a job's state; it can be made anew from them at any time."""

    def __init__(
        self,
        tasks: dict[TaskId, Task],
        judging: Mapping[TaskId, object],
        scoring: Mapping[TaskId, object],
        here: Mapping[SiteName, object],
    ) -> None:
        self._tasks = tasks
        self._judging, self._scoring = (
            judging,
            scoring,
        )  # which of them are evaluations of updates, or of their means
        self._here = here  # learners that attend
        self._work: dict[SiteName, dict[TaskId, Task]] = {}  # tasks that lead to a model
        self._judgements: dict[SiteName, dict[TaskId, Task]] = {}  # evaluations of updates and of their means
        self._evaluations: dict[SiteName, dict[TaskId, Task]] = {}  # of community models
        self._versions: dict[int, set[SiteName]] = {}  # who has yet to report on each
        self._at_work = 0  # sites that attend and have such a task
        for task in tasks.values():
            self._enter(task)

    def add(self, task: Task) -> None:
        """Put a task on the desk."""
        self._tasks[task.id] = task
        self._enter(task)

    def take(self, task_id: TaskId) -> Task | None:
        """Take a task off the desk, if it is there."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return None
        index = self._index(task)
        if index is self._evaluations and isinstance(task.work, Evaluate):
            self._versions[task.work.version].discard(task.site)
            if not self._versions[task.work.version]:
                del self._versions[task.work.version]
        del index[task.site][task.id]
        if not index[task.site]:
            del index[task.site]
            self._at_work -= index is self._work and task.site in self._here
        return task

    def _enter(self, task: Task) -> None:
        index = self._index(task)
        if task.site not in index:
            self._at_work += index is self._work and task.site in self._here
        index.setdefault(task.site, {})[task.id] = task
        if index is self._evaluations and isinstance(task.work, Evaluate):
            self._versions.setdefault(task.work.version, set()).add(task.site)

    def _index(self, task: Task) -> dict[SiteName, dict[TaskId, Task]]:
        if task.id in self._judging or task.id in self._scoring:
            return self._judgements
        return self._evaluations if isinstance(task.work, Evaluate) else self._work

    def came(self, site: SiteName) -> None:
        """Take note that a learner attends; say so once."""
        self._at_work += site in self._work

    def went(self, site: SiteName) -> None:
        """Take note that a learner is gone; say so once."""
        self._at_work -= site in self._work

    @property
    def busy(self) -> AbstractSet[SiteName]:
        """The sites with a task that leads to a model; some may be away."""
        return self._work.keys()

    @property
    def somebody_works(self) -> bool:
        """Whether a site that attends has such a task."""
        return self._at_work > 0

    def work(self, site: SiteName | None = None) -> list[Task]:
        """Return the tasks that lead to a model, of one site or of all, in the order in which they were given."""
        if site is not None:
            return list(self._work.get(site, {}).values())
        return [task for task in self._tasks.values() if not isinstance(task.work, Evaluate)]

    def evaluations(self, site: SiteName) -> list[Task]:
        """Return the evaluations of community models that a site has yet to report."""
        return list(self._evaluations.get(site, {}).values())

    def judgements(self, site: SiteName) -> list[Task]:
        """Return the evaluations of updates, or of their means, that a site has yet to report."""
        return list(self._judgements.get(site, {}).values())

    def evaluates(self, version: int | None = None) -> bool:
        """Whether an evaluation of a community model, or of any, is under way."""
        return bool(self._versions if version is None else version in self._versions)

    @property
    def versions(self) -> AbstractSet[int]:
        """The versions that somebody has yet to report on."""
        return self._versions.keys()

    def evaluators(self, version: int) -> AbstractSet[SiteName]:
        """Return the sites that have yet to report on a community model."""
        return self._versions.get(version, frozenset())

    def of(self, site: SiteName) -> list[Task]:
        """Return all tasks of a site's daemons."""
        found = (self._work, self._judgements, self._evaluations)
        return [task for index in found for task in index.get(site, {}).values()]
