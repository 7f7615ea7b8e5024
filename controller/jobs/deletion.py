"""Deleting jobs that have ended: models, journal and all, by an operator or when they are old.

    `deleted` in the audit log ──► models ──► journal, the job's own record last ──► the operator is told

The record is the decision. A controller that is killed after it finishes the deletion when it starts again.
"""

import asyncio
import logging
from contextlib import suppress

from hansa.common.process import faults
from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, HansaError, Refused
from hansa.common.values.ids import JobId
from hansa.controller.audit.log import Audit
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.launcher import Launcher
from hansa.controller.jobs.records import Records
from hansa.controller.storage.stores import Store
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)
DAY = 86_400.0  # seconds
MOMENT = 5.0  # seconds that a deletion may take when the controller stops
LOOK = 600.0  # seconds between two looks for jobs that are old enough


class Deletion:
    """Deletes jobs. One that is under way cannot be deleted."""

    def __init__(
        self,
        jobs: Jobs,
        launcher: Launcher,
        records: Records,
        store: Store,
        workers: Workers,
        audit: Audit,
        clock: Clock,
        keep_days: float | None = None,  # of jobs that have ended; None: for ever
    ) -> None:
        self._jobs, self._launcher, self._records = jobs, launcher, records
        self._store, self._workers, self._audit, self._clock = store, workers, audit, clock
        self._keep_days = keep_days
        self._under_way: dict[JobId, asyncio.Task[None]] = {}

    async def delete(self, job: JobId, who: str, why: str = "") -> None:
        """Delete a job; return when nothing is left of it but its records in the audit log."""
        if not self._jobs.ended(job):
            raise Refused(f"job {job} has not ended; `hansa job cancel {job}` ends it")
        if job in self._under_way:
            raise Refused(f"job {job} is being deleted already")
        # In a task of its own: an operator who hangs up must not leave half a job.
        task = self._under_way[job] = asyncio.create_task(self._delete(job, who, why), name=f"delete {job}")
        task.add_done_callback(lambda _: self._under_way.pop(job))
        await asyncio.shield(task)

    async def close(self) -> None:
        """Give deletions under way a moment; the next start finishes the others."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=0 if self._workers.trouble else MOMENT)
        for task in list(self._under_way.values()):
            task.cancel()

    async def _delete(self, job: JobId, who: str, why: str) -> None:
        await self._launcher.finished(job)
        digest = ""
        with suppress(Broken):  # a damaged journal can be deleted, too
            digest = await self._records.digest(job)
        about = "; ".join(filter(None, (self._jobs.title(job), why)))
        await self._audit.record(who, "deleted", job, about, digest)
        faults.reach("deletion-recorded")
        self._jobs.drop(job)
        await self._remove(job)
        log.info("job %s deleted by %s", job, who)

    async def _remove(self, job: JobId) -> None:
        await self._workers.io(self._store.forget, job)
        faults.reach("models-deleted")
        await self._records.forget(job)

    async def finish(self) -> None:
        """Finish the deletions that a kill has interrupted, before any job is read."""
        deleted = self._audit.deleted
        if not deleted:
            return
        left = {record.id for record in await self._records.all()}
        with suppress(Broken):  # a damaged model, which its readers report
            left |= {JobId(key.partition("/")[0]) for key in await self._workers.io(self._store.keys)}
        for job in sorted(deleted & left):
            await self._remove(job)
            log.info("job %s: its interrupted deletion is finished", job)

    async def watch(self) -> None:
        """Delete jobs that ended long enough ago, for as long as the controller runs."""
        while self._keep_days is not None:
            await self._delete_old(self._keep_days)
            await self._clock.sleep_until(self._clock.now() + LOOK)

    async def _delete_old(self, days: float) -> None:
        why = f"it ended more than {days:g} days ago (--keep-days)"
        for job in self._jobs.ended_before(self._clock.now() - days * DAY):
            try:
                await self.delete(job, "controller", why)
            except HansaError as error:  # also if an operator was faster
                log.warning("job %s is old and could not be deleted: %s", job, error)
