"""Jobs read from the journal: restored by replay, or failed with the reason why that is impossible."""

import logging
from collections.abc import Callable

from hansa.common.job.spec import JobSpec
from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, reason
from hansa.common.values.ids import JobId
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.records import Records, read_spec
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.rulebook.compose import compose, composed_again
from hansa.controller.storage.journal import JobRecord

log = logging.getLogger(__name__)
CUT = "its journal lost the entry of its end"
ADVICE = "`hansa job verify` shows details"


class Reader:
    """Reads jobs back from the journal."""

    def __init__(self, make_runner: Callable[[Machine], JobRunner], records: Records, clock: Clock) -> None:
        self._make_runner, self._records, self._clock = make_runner, records, clock

    async def replayed(self, record: JobRecord) -> Machine:
        """Return a job in the state in which its journal ends."""
        spec = read_spec(record)
        machine = Machine(record.id, spec, composed_again(spec), record.at)
        machine = await self._records.catch_up(machine)
        self._clock.catch_up(record.at)
        return machine

    async def load(self, job: JobId) -> JobRunner:
        """Return a job that has ended; one that cannot be read is shown as failed, with the reason."""
        record = await self._records.one(job)
        if record is None:
            return self.failed(JobRecord(job, "", 0.0), f"the journal lost job {job}")
        try:
            machine = await self.replayed(record)
        except Exception as error:
            log.exception("job %s cannot be read", job)
            return self.failed(record, f"{reason(error)}; {ADVICE}")
        return self._make_runner(machine) if machine.ended else self.failed(record, f"{CUT}; {ADVICE}")

    def failed(self, record: JobRecord, why: str) -> JobRunner:
        """Return a job that cannot be resumed as failed; its journal stays, for `hansa job verify`."""
        unknown = JobSpec(name=record.id, app="unknown:app")
        try:
            spec = read_spec(record)
        except Broken:
            spec = unknown  # even its specification cannot be read
        # The job's own rule may be what is missing, and a failed job does not need it.
        machine = Machine(record.id, spec, compose(unknown), record.at)
        machine.abandon(why, record.at)
        return self._make_runner(machine)
