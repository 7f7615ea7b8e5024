"""What a start does with the journal's jobs: those under way go on, ended ones are listed, lost ones are named."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hansa.common.job.spec import JobSpec
from hansa.common.values.errors import Broken, reason
from hansa.common.values.ids import JobId, ModelKey, reference_key
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.archive import Summary, read_summary, summary_of
from hansa.controller.jobs.records import NO_EVENTS, read_spec
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.rulebook.compose import compose, composed_again
from hansa.controller.storage.journal import JobRecord

if TYPE_CHECKING:
    from hansa.controller.jobs.federation import Federation

log = logging.getLogger(__name__)
CUT, MORE = "its journal lost how it ended", "`hansa job verify` tells more"


class Resumption:
    """Brings jobs back from the journal, all of them at the start, ended ones when they are asked for."""

    def __init__(self, federation: "Federation") -> None:
        self._federation = federation

    async def resume_all(self) -> None:
        """Go on with the journal's jobs, and name those that only the store knows."""
        federation = self._federation
        records, summaries = await federation.records.all(), await self._summaries()
        for record in records:
            if (
                record.id in federation.audit.interrupted
            ):  # it was entered, and the controller was killed just then
                federation.audit.note("controller", "accepted", record.id)
        machines: list[tuple[JobRecord, Machine]] = []
        for record in records:  # no alarm is set before the clock knows all times that have been
            summary = (
                read_summary(record.id, summaries[record.id])
                if record.id in summaries and record.spec
                else None
            )
            if summary and not federation.audit.lacks_end(record.id, summary.ended):
                federation.archive.summaries[record.id] = summary
                federation.clock.catch_up(summary.ended)
                continue
            with self._burying(record):
                machines.append((record, await self._recalled(record)))
        for record, machine in machines:
            with self._burying(record):
                await self._resume(machine)
        federation.sort([record.id for record in records])
        await self._look_for_lost_jobs()

    async def _summaries(self) -> dict[JobId, str]:
        """Return the journal's summaries; none if they cannot be read, for they only save time."""
        try:
            return await self._federation.records.summaries()
        except Broken as error:
            log.warning("ended jobs are read from their events: their summaries cannot be read: %s", error)
            return {}

    async def _conclude(self, runner: JobRunner) -> None:
        """Sum up a job that had ended without a summary; if that cannot be kept, the next start does it again."""
        summary = self._federation.archive.summaries[runner.id] = summary_of(runner)
        try:
            await self._federation.records.conclude(runner.id, summary.model_dump_json())
        except Broken as error:
            log.warning("job %s is not summed up: %s", runner.id, error)

    async def _look_for_lost_jobs(self) -> None:
        """Name the jobs that only the store knows; drop models that an ended job does not need."""
        federation = self._federation
        try:
            stored = await federation.workers.io(federation.store.keys)
        except Broken as error:  # the job whose model it is has failed for it above
            log.warning("jobs that the journal has lost are not looked for: %s", error)
            return
        known = set(federation.known)
        for key in stored:
            job = JobId(key.partition("/")[0])
            summary = federation.archive.summaries.get(job)
            if summary and key not in summary.models:
                await self._drop(summary, key)
            elif job not in known:
                why = f"the store has models of job {job}, but the journal has no record of it: it was evicted or lost"
                log.error(why)
                federation.adopt(self._buried(JobRecord(job, "", federation.clock.now()), why))
                known.add(job)

    async def _drop(self, summary: Summary, key: ModelKey) -> None:
        try:
            await self._federation.workers.io(self._federation.store.delete, key)
        except Broken as error:
            log.warning("job %s: model %s, which it does not need, stays: %s", summary.view.job, key, error)

    async def load(self, job: JobId) -> JobRunner:
        """Return a job that has ended, read from its journal; one that cannot be read has failed, and says why."""
        record = await self._federation.records.one(job)
        if record is None:
            return self._buried(JobRecord(job, "", 0.0), f"the journal has lost job {job}")
        try:
            machine = await self._recalled(record)
        except Exception as error:
            log.exception("job %s cannot be read", job)
            return self._buried(record, f"{reason(error)}; {MORE}")
        if not machine.ended:
            return self._buried(record, f"{CUT}; {MORE}")
        runner, view = JobRunner(machine, self._federation), self._federation.archive.summaries[job].view
        # No version accounts for what was moved after the last one: only the summary tells of it.
        runner.traffic.up = max(0, view.bytes_up - machine.state.bytes_up)
        runner.traffic.down = max(0, view.bytes_down - machine.state.bytes_down)
        return runner

    @contextmanager
    def _burying(self, record: JobRecord) -> Iterator[None]:
        """List a job that cannot be resumed as failed: it must not keep the others from going on."""
        try:
            yield
        except Exception as error:
            log.exception("job %s cannot be resumed", record.id)
            self._federation.adopt(self._buried(record, f"{reason(error)}; {MORE}"))

    def _buried(self, record: JobRecord, why: str) -> JobRunner:
        """Return a job that cannot be resumed as failed; its journal stays as it is, for `hansa job verify`."""
        unknown = JobSpec(name=record.id, app="unknown:app")
        try:
            spec = read_spec(record)
        except Broken:
            spec = unknown  # not even its words can be read
        # its own rule may be what is missing, and nothing will be asked of it
        machine = Machine(record.id, spec, compose(unknown), record.at)
        machine.abandon(why, record.at)
        return JobRunner(machine, self._federation)

    async def _recalled(self, record: JobRecord) -> Machine:
        spec = read_spec(record)
        machine = Machine(record.id, spec, composed_again(spec), record.at)
        machine = await self._federation.records.catch_up(machine)
        self._federation.clock.catch_up(record.at)
        return machine

    async def _resume(self, machine: Machine) -> None:
        federation = self._federation
        io, store, audit = federation.workers.io, federation.store, federation.audit
        spec, current = machine.spec, machine.state.current
        stored = await io(store.keys, f"{machine.job}/")
        lost = ""
        reference, made = (
            machine.state.reference,
            [key for key in stored if key != reference_key(machine.job)],
        )
        if not machine.state.sequence and (spec.init or (reference is not None and reference not in stored)):
            lost = "the submission was interrupted"
        elif made and not machine.state.sequence:
            lost = NO_EVENTS
        elif audit.end(machine.job):
            lost = f"{CUT}: {audit.end(machine.job)}"
        elif current is not None and not await io(store.has, current):
            lost = f"the store lost the job's models (version {machine.state.version}) while the controller was down"
        runner = JobRunner(machine, federation)
        if lost and not machine.ended:
            federation.launch(runner, [])
            runner.post(ev.EngineFailed(at=federation.clock.now(), reason=lost))
            return
        for key in stored:
            if key not in machine.state.models:  # it came or was dropped in the moment of the crash
                await io(store.delete, key)
        if machine.state.ended is not None and not audit.lacks_end(machine.job, machine.state.ended):
            await self._conclude(runner)
            return
        federation.launch(runner, machine.resume())
        if not machine.ended:
            log.info("job %s (%s) resumed in round %d", machine.job, spec.name, machine.state.round)
            for site, role in runner.expected():
                federation.fleet.expect(site, role)
