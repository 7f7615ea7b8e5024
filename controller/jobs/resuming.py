"""What a start does with the journal's jobs: it resumes open jobs, lists ended ones and reports lost ones."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, reason
from hansa.common.values.ids import JobId, ModelKey, reference_key
from hansa.controller.audit.log import Audit
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.jobs.archive import Summary, read_summary, summary_of
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.invitations import expected
from hansa.controller.jobs.launcher import Launcher
from hansa.controller.jobs.reading import ADVICE, CUT, Reader
from hansa.controller.jobs.records import NO_EVENTS, Records
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.rulebook.equipment import require_extras
from hansa.controller.storage.journal import JobRecord
from hansa.controller.storage.stores import Store
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)


class Resumption:
    """Restores all jobs from the journal when the controller starts."""

    def __init__(
        self,
        make_runner: Callable[[Machine], JobRunner],
        reader: Reader,
        jobs: Jobs,
        launcher: Launcher,
        store: Store,
        workers: Workers,
        clock: Clock,
        fleet: Fleet,
        audit: Audit,
        records: Records,
    ) -> None:
        self._make_runner, self._reader, self._jobs, self._launcher = make_runner, reader, jobs, launcher
        self._store, self._workers, self._clock = store, workers, clock
        self._fleet, self._audit, self._records = fleet, audit, records

    async def resume_all(self) -> None:
        """Resume the journal's jobs, and report those that only the store knows."""
        records, summaries = await self._records.all(), await self._summaries()
        for record in records:
            if record.id in self._audit.interrupted:  # the controller was killed just after it entered it
                self._audit.note("controller", "accepted", record.id)
        machines: list[tuple[JobRecord, Machine]] = []
        for record in records:  # no alarm is set before the clock has caught up with every recorded time
            if self._is_archived(record, summaries):
                continue
            with self._listing_failure(record):
                machines.append((record, await self._reader.replayed(record)))
        for record, machine in machines:
            with self._listing_failure(record):
                await self._resume(machine)
        self._jobs.sort([record.id for record in records])
        await self._look_for_lost_jobs()

    async def _summaries(self) -> Mapping[JobId, str]:
        """Return the journal's summaries, or none if they cannot be read: they only save time."""
        try:
            return await self._records.summaries()
        except Broken as error:
            log.warning("ended jobs are read from their events: their summaries cannot be read: %s", error)
            return {}

    def _is_archived(self, record: JobRecord, summaries: Mapping[JobId, str]) -> bool:
        """Put a job with a usable summary into the archive; return whether it has one."""
        text = summaries.get(record.id) if record.spec else None
        summary = read_summary(record.id, text) if text is not None else None
        if summary is None or self._audit.lacks_end(record.id, summary.ended):
            return False
        self._jobs.archive.summaries[record.id] = summary
        self._clock.catch_up(summary.ended)
        return True

    @contextmanager
    def _listing_failure(self, record: JobRecord) -> Iterator[None]:
        """List a job that cannot be resumed as failed: it must not keep the others from going on."""
        try:
            yield
        except Exception as error:
            log.exception("job %s cannot be resumed", record.id)
            self._jobs.adopt(self._reader.failed(record, f"{reason(error)}; {ADVICE}"))

    async def _resume(self, machine: Machine) -> None:
        if not machine.ended:
            require_extras(machine.rule)  # it may have begun on a controller that had them
        io = self._workers.io
        stored = await io(self._store.keys, f"{machine.job}/")
        loss = await self._loss(machine, stored)
        runner = self._make_runner(machine)
        if loss and not machine.ended:
            self._launcher.launch(runner, [])
            runner.post(ev.EngineFailed(at=self._clock.now(), reason=loss))
            return
        for key in stored:
            if key not in machine.state.models:  # the controller crashed just after it arrived or was dropped
                await io(self._store.delete, key)
        if machine.state.ended is not None and not self._audit.lacks_end(machine.job, machine.state.ended):
            await self._conclude(runner)
            return
        self._launcher.launch(runner, machine.resume())
        if not machine.ended:
            log.info("job %s (%s) resumed in round %d", machine.job, machine.spec.name, machine.state.round)
            for site, role in expected(machine.state):
                self._fleet.expect(site, role)

    async def _conclude(self, runner: JobRunner) -> None:
        """Summarize a job that ended without a summary; if this fails, the next start does it again."""
        summary = self._jobs.archive.summaries[runner.id] = summary_of(runner)
        try:
            await self._records.conclude(runner.id, summary.model_dump_json())
        except Broken as error:
            log.warning("job %s: its summary could not be saved: %s", runner.id, error)

    async def _loss(self, machine: Machine, stored: Collection[ModelKey]) -> str:
        """Say what a job has lost and cannot go on without; empty if it has everything."""
        spec, state, end = machine.spec, machine.state, self._audit.end(machine.job)
        if not state.sequence and (
            spec.init or (state.reference is not None and state.reference not in stored)
        ):
            return "the submission was interrupted"
        if not state.sequence and any(key != reference_key(machine.job) for key in stored):
            return NO_EVENTS
        if end:
            return f"{CUT}: {end}"
        if state.current is not None and not await self._workers.io(self._store.has, state.current):
            return f"the store lost the job's models (version {state.version}) while the controller was down"
        return ""

    async def _look_for_lost_jobs(self) -> None:
        """Report the jobs that only the store knows; drop models that an ended job does not need."""
        try:
            stored = await self._workers.io(self._store.keys)
        except Broken as error:  # the job that the damaged model belongs to has already failed
            log.warning("cannot look for jobs that the journal lost: %s", error)
            return
        known = set(self._jobs.known)
        for key in stored:
            job = JobId(key.partition("/")[0])
            summary = self._jobs.archive.summaries.get(job)
            if summary and key not in summary.models:
                await self._drop(summary, key)
            elif job not in known:
                why = (
                    f"the store has models of job {job}, but the journal has no record of it:"
                    " it was evicted or lost"
                )
                log.error(why)
                self._jobs.adopt(self._reader.failed(JobRecord(job, "", self._clock.now()), why))
                known.add(job)

    async def _drop(self, summary: Summary, key: ModelKey) -> None:
        try:
            await self._workers.io(self._store.delete, key)
        except Broken as error:
            log.warning("job %s: unneeded model %s could not be removed: %s", summary.view.job, key, error)
