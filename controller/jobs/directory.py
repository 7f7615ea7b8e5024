"""All jobs that the controller knows: those with a runner, and the archive of those that ended earlier."""

from collections import Counter
from collections.abc import Sequence

from hansa.common.values.errors import NotFound, Stale
from hansa.common.values.ids import JobId, TaskId
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import listed
from hansa.controller.jobs.archive import LOADED, Archive, Summary
from hansa.controller.jobs.runner import JobRunner


class Jobs:
    """Finds jobs by id or name. Jobs under way have a runner, and so have the last few to end."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._runners: dict[JobId, JobRunner] = {}
        self._concluded: dict[JobId, Summary] = {}  # of those with a runner

    def adopt(self, runner: JobRunner) -> None:
        """List a job."""
        self._runners[runner.id] = runner

    def conclude(self, job: JobId, summary: Summary) -> None:
        """Note that an ended job can be read from the journal; only the last few stay in memory."""
        self._concluded[job] = summary
        while len(self._concluded) > LOADED:
            oldest = next(iter(self._concluded))
            self.archive.summaries[oldest] = self._concluded.pop(oldest)
            del self._runners[oldest]

    def drop(self, job: JobId) -> None:
        """Stop listing a job that is deleted."""
        self._runners.pop(job, None)
        self._concluded.pop(job, None)
        self.archive.drop(job)

    def ended(self, job: JobId) -> bool:
        """Whether a job is over."""
        return job in self.archive.summaries or self.runner(job).machine.ended

    def title(self, job: JobId) -> str:
        """Say in a few words which job it is, and what became of it."""
        summary = self.archive.summaries.get(job)
        if summary:
            return f"{summary.view.name}: {summary.view.status}"
        machine = self.runner(job).machine
        return f"{machine.spec.name}: {machine.state.status}"

    def ended_before(self, at: float) -> list[JobId]:
        """Return the jobs that ended before a time, by an event in their journals.

        A job that only looks failed, because its journal or its plugins are missing, may go on one day.
        """
        ends = {job: summary.ended for job, summary in self.archive.summaries.items()}
        for job, runner in self._runners.items():
            state = runner.machine.state
            if state.ended is not None and state.sequence and not runner.abandoned:
                ends[job] = state.ended
        return [job for job, ended in ends.items() if ended <= at]

    def sort(self, jobs: Sequence[JobId]) -> None:
        """List jobs in the order of their submission."""
        self._runners = {job: self._runners[job] for job in jobs if job in self._runners}

    @property
    def runners(self) -> list[JobRunner]:
        """The runners, in the order of submission."""
        return list(self._runners.values())

    @property
    def newest_first(self) -> list[JobRunner]:
        """The runners, the newest first."""
        return self.runners[::-1]

    @property
    def known(self) -> list[JobId]:
        """The ids of all jobs."""
        return [*self._runners, *(job for job in self.archive.summaries if job not in self._runners)]

    def runner(self, job: JobId) -> JobRunner:
        """Return the runner of a job by its id."""
        if job in self.archive.summaries:
            raise Stale(f"job {job} has ended")
        if job not in self._runners:
            raise NotFound(f"there is no job {job}")
        return self._runners[job]

    async def recall(self, job: JobId) -> JobRunner:
        """Return any job by its id; an archived one is read from the journal."""
        return self._runners[job] if job in self._runners else await self.archive.recall(job)

    def identify(self, words: str) -> JobId:
        """Return the id of a job, given that id, a unique prefix of it, or a name that only one job has."""
        if words in self.known:
            return JobId(words)
        names = {job: summary.view.name for job, summary in self.archive.summaries.items()}
        names |= {job: runner.machine.spec.name for job, runner in self._runners.items()}
        matches = [job for job, name in names.items() if name == words]
        matches = matches or [job for job in names if words and job.startswith(words)]
        if not matches:
            raise NotFound(f"there is no job {words!r}; `hansa job list` shows all")
        if len(matches) > 1:
            raise NotFound(f"{words!r} could be any of the jobs {listed(matches, 10)}")
        return matches[0]

    def keyed(self, operator: str, key: str) -> JobId | None:
        """Return the id of the job that an operator has submitted with a key."""
        views = {job: summary.view for job, summary in self.archive.summaries.items()}
        keys = {(view.operator, view.key): job for job, view in views.items()}
        specs = {job: runner.machine.spec for job, runner in self._runners.items()}
        keys |= {(spec.operator, spec.key): job for job, spec in specs.items()}
        return keys.get((operator, key))

    async def find(self, words: str) -> JobRunner:
        """Return a job by its id, a unique prefix of it, or a name that only one job has."""
        return await self.recall(self.identify(words))

    def views(self) -> list[JobView]:
        """Return the views of all jobs for a list, newest first."""
        views = {(summary.submitted, job): summary.view for job, summary in self.archive.summaries.items()}
        views |= {
            (runner.machine.state.submitted, job): runner.list_view() for job, runner in self._runners.items()
        }
        return [views[place] for place in sorted(views, reverse=True)]

    def statuses(self) -> Counter[str]:
        """Count jobs by their status."""
        ended = Counter(summary.view.status for summary in self.archive.summaries.values())
        return ended + Counter(runner.machine.state.status for runner in self._runners.values())

    def awaits(self, task: TaskId) -> bool:
        """Whether some job still waits for the result of a task."""
        return any(task in runner.machine.state.tasks for runner in self._runners.values())

    def changed(self) -> None:
        """Wake everybody who watches a job."""
        for runner in self._runners.values():
            runner.changed()
