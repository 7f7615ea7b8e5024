"""Runs jobs, each in a task of its own, and records how they end."""

import asyncio
import logging
from collections.abc import Callable

from hansa.common.values.errors import Broken
from hansa.common.values.ids import JobId
from hansa.controller.audit.log import Audit
from hansa.controller.engine.effects import Effect
from hansa.controller.jobs.archive import summary_of
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.records import Records
from hansa.controller.jobs.runner import JobRunner

log = logging.getLogger(__name__)
MOMENT = 5.0  # seconds in which ended jobs may tidy up when the controller stops


class Launcher:
    """Owns the tasks in which jobs run. Use it as an async context manager: leaving it stops all jobs."""

    def __init__(self, jobs: Jobs, records: Records, audit: Audit, trouble: Callable[[], str]) -> None:
        self._jobs, self._records, self._audit = jobs, records, audit
        self._trouble = trouble  # says why the store cannot be used right now
        self._tasks = asyncio.TaskGroup()
        self._runs: dict[JobId, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Launcher":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        closing = [self._runs[runner.id] for runner in self._jobs.runners if self._is_closing(runner)]
        if closing and not self._trouble():  # tidying up and recording the end takes a moment
            await asyncio.wait(closing, timeout=MOMENT)
        self.stop()
        await self._tasks.__aexit__(None, None, None)

    def _is_closing(self, runner: JobRunner) -> bool:
        return runner.id in self._runs and runner.machine.ended

    @property
    def running(self) -> set[JobId]:
        """The jobs that run, and those that have ended and are still tidying up and recording their end."""
        return set(self._runs)

    async def finished(self, job: JobId) -> None:
        """Wait until a job that has ended has also tidied up and recorded its end."""
        if job in self._runs:
            await asyncio.wait((self._runs[job],))

    async def settled(self) -> None:
        """Wait until no job runs."""
        while self._runs:
            await asyncio.wait(self._runs.values())

    def stop(self) -> None:
        """Stop all jobs where they are; a restart resumes them from the journal."""
        for run in self._runs.values():
            run.cancel()

    def launch(self, runner: JobRunner, effects: list[Effect]) -> None:
        """List a job and run it; if it has ended, record its end."""
        self._jobs.adopt(runner)
        run = self._tasks.create_task(self._run(runner, effects), name=runner.id)
        self._runs[runner.id] = run
        run.add_done_callback(lambda _: self._runs.pop(runner.id))

    async def _run(self, runner: JobRunner, effects: list[Effect]) -> None:
        """Run a job and record its end, with the digest of its journal if there is time to compute it."""
        digest = ""
        try:
            await runner.run(effects)
            digest = await self._records.digest(runner.id)
        except Exception:  # a journal that cannot be read must not end the other jobs
            log.exception("job %s: its journal cannot be read for the audit log", runner.id)
        finally:
            state = runner.machine.state
            if runner.machine.ended:
                details = (f"{state.status}: {state.reason}", state.chain, digest)
                recorded = self._audit.note("controller", "ended", runner.id, *details)
        if digest and not runner.abandoned:
            await self._conclude(runner, recorded)

    async def _conclude(self, runner: JobRunner, recorded: "asyncio.Future[None]") -> None:
        """Summarize a job whose end is durable, so that the next start need not read its events."""
        try:
            await recorded
            summary = summary_of(runner)
            await self._records.conclude(runner.id, summary.model_dump_json())
        except Broken as error:  # a summary only saves time
            log.warning("job %s: its summary could not be saved: %s", runner.id, error)
        else:
            self._jobs.conclude(runner.id, summary)
