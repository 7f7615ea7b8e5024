"""Jobs that ended, except the last few: listed by their summaries, read in full on request.

A summary is written when a job has ended, its models are tidied up and its end is in the audit log. A start
therefore only reads the events of jobs without a summary: those under way, and those that ended just as the
controller was killed. Everything in a summary follows from the job's journal; a damaged one is made again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from hansa.common.values.bounds import Value
from hansa.common.values.errors import NotFound, Stale, one_line
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId, job_of
from hansa.common.values.views import JobView
from hansa.controller.jobs.runner import JobRunner

log = logging.getLogger(__name__)
LOADED = 16  # jobs that are kept in full: those requested last, and those that ended last


class Summary(Value):
    """What is known about an ended job without reading its events."""

    view: JobView  # as in a list of jobs: without sites and history
    submitted: float
    ended: float
    models: frozenset[ModelKey]  # that the store keeps
    receipts: Mapping[SiteName, TaskId]  # the task that each site's last receipt is for


def summary_of(runner: JobRunner) -> Summary:
    """Sum up a job that has ended."""
    state = runner.machine.state
    assert state.ended is not None, "only jobs that have ended are summed up"
    return Summary(
        view=runner.list_view(),
        submitted=state.submitted,
        ended=state.ended,
        models=frozenset(state.models),
        receipts={site: receipt.task for site, receipt in state.receipts.items() if receipt.task},
    )


def read_summary(job: JobId, text: str) -> Summary | None:
    """Return a summary; None if it is damaged or has another format: the journal can replace it."""
    try:
        summary = Summary.model_validate_json(text)
    except ValueError as error:
        log.warning("job %s is read from its events: its summary cannot be used: %s", job, one_line(error))
        return None
    return summary if summary.view.job == job else None


class Archive:
    """Ended jobs, by id. `load` reads one from the journal."""

    def __init__(self, load: Callable[[JobId], Awaitable[JobRunner]]) -> None:
        self.summaries: dict[JobId, Summary] = {}
        self._load = load
        self._loading = asyncio.Lock()
        self._loaded: dict[JobId, JobRunner] = {}

    def require_receipt(self, site: SiteName, task: TaskId) -> None:
        """Raise Stale if a task's job is archived and has no receipt for it: the job need not be read."""
        summary = self.summaries.get(job_of(task))
        if summary and summary.receipts.get(site) != task:
            raise Stale(f"task {task} is over")

    def drop(self, job: JobId) -> None:
        """Stop listing a job."""
        self.summaries.pop(job, None)
        self._loaded.pop(job, None)

    async def recall(self, job: JobId) -> JobRunner:
        """Return a job in full; the last few are kept."""
        if job not in self.summaries:
            raise NotFound(f"there is no job {job}")
        async with self._loading:  # the next caller that asks for the same job finds it loaded
            runner = self._loaded.pop(job, None) or await self._load(job)
            if job not in self.summaries:
                raise NotFound(f"job {job} was deleted")
            self._with_traffic(runner)
            self._loaded[job] = runner
            while len(self._loaded) > LOADED:
                self._loaded.pop(next(iter(self._loaded)))
        return runner

    def _with_traffic(self, runner: JobRunner) -> None:
        """Add the traffic since the last version: no version accounts for it, only the summary does."""
        view, state = self.summaries[runner.id].view, runner.machine.state
        runner.traffic.up = max(0, view.bytes_up - state.bytes_up)
        runner.traffic.down = max(0, view.bytes_down - state.bytes_down)
