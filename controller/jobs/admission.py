"""How a submission becomes a job: it is checked, its models are stored, it is made durable and launched."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from hansa.common.job.check import located
from hansa.common.job.spec import JobSpec, Problem
from hansa.common.models.model import Manifest
from hansa.common.process import faults
from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, InvalidJob, Stale
from hansa.common.values.ids import JobId, new_job_id
from hansa.common.values.results import Anatomy
from hansa.controller.audit.log import Audit
from hansa.controller.audit.records import digest_of
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.jobs.invitations import gather
from hansa.controller.jobs.keys import Keys
from hansa.controller.jobs.launcher import Launcher
from hansa.controller.jobs.records import Records, read_again
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.jobs.submission import Submission, SubmittedModel
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.outline import Outline, outline_of
from hansa.controller.rulebook.compose import compose
from hansa.controller.rulebook.equipment import require_extras
from hansa.controller.rulebook.resolve import software
from hansa.controller.storage.journal import JobRecord
from hansa.controller.storage.stores import Store
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)


class Admission:
    """Takes submissions."""

    def __init__(
        self,
        make_runner: Callable[[Machine], JobRunner],
        launcher: Launcher,
        store: Store,
        workers: Workers,
        clock: Clock,
        fleet: Fleet,
        audit: Audit,
        records: Records,
        keys: Keys,
    ) -> None:
        self._make_runner, self._launcher = make_runner, launcher
        self._store, self._workers, self._clock = store, workers, clock
        self._fleet, self._audit, self._records = fleet, audit, records
        self._keys = keys
        self._entering: set[asyncio.Task[JobRunner]] = set()

    def close(self) -> None:
        """Stop submissions that are being made durable; a restart finds each complete or not at all."""
        for entering in self._entering:
            entering.cancel()

    async def submit(
        self,
        spec: JobSpec,
        manifest: Manifest | None,
        frames: AsyncIterator[bytes],
        who: str = "unknown",
        reference: Manifest | None = None,
    ) -> JobRunner:
        """Check a job, store the models submitted with it, and start it, even if the operator hangs up.

        The frames of the first model come first, if there is one; the frames of the reference follow. If the
        operator has submitted this job with the same key before, that one is returned.
        """
        spec = read_again(spec)
        rule = compose(spec)
        require_extras(rule)
        spec = spec.model_copy(update={"made_with": software(rule)})
        models = Submission(manifest, reference, rule.travel)
        models.check(spec, [each.name for each in rule.auxiliary])
        spec = models.named(spec)
        async with self._keys.turn(spec) as runner:
            return runner or await self._take(spec, rule, models, frames, who)

    async def _take(
        self, spec: JobSpec, rule: Composition, models: Submission, frames: AsyncIterator[bytes], who: str
    ) -> JobRunner:
        """Receive the models of a job and make it durable."""
        job = new_job_id()
        outline = outline_of(models.version_0.spec) if models.version_0 and rule.needs_outline else None
        misfits = misfits_of(rule, outline) if outline else []
        if misfits:
            raise InvalidJob([located(problem, {}) for problem in misfits])
        drafts = await models.take(job, frames, self._store, self._workers)
        entering = asyncio.create_task(  # not in the launcher's group: it may fail
            self._enter(job, spec, rule, drafts, None if rule.needs_description else outline, who)
        )
        self._entering.add(entering)
        entering.add_done_callback(self._entering.discard)
        self._keys.note(spec, entering)
        return await asyncio.shield(entering)

    async def _enter(
        self,
        job: JobId,
        spec: JobSpec,
        rule: Composition,
        models: Sequence[SubmittedModel],
        outline: Outline | None,
        who: str,
    ) -> JobRunner:
        """Make a job durable and start it."""
        now = self._clock.now()
        record = JobRecord(job, spec.model_dump_json(), now)
        summary = f"{spec.name}: rule {spec.rule}, app {spec.app}"
        try:
            runner = self._make_runner(Machine(job, spec, rule, now))  # a plugin may fail here
            await self._audit.record(who, "submitted", job, summary, digest_of(record.spec))
            faults.reach("job-announced")
            await self._records.enter(record)
            faults.reach("job-entered")
            with suppress(Broken):  # the job is durable and will run, even if the log cannot be written
                await self._audit.record("controller", "accepted", job)
            for model in models:  # only now: models of a job that is not in the journal are never removed
                await self._workers.io(model.draft.publish, model.manifest, model.peaks)
        finally:
            for model in models:
                await self._workers.io(model.draft.discard)
        self._launcher.launch(runner, runner.machine.start())
        log.info("job %s (%s) submitted: rule %s, app %s", job, spec.name, spec.rule, spec.app)
        if spec.init:
            with suppress(Stale):  # the job itself shows why its rule cannot use the model
                averaged = models[0].manifest.spec.is_averaged
                await runner.post(ev.ModelGiven(at=now, digest=spec.init, outline=outline, averaged=averaged))
        await gather(runner, self._fleet.sessions)
        return runner


def misfits_of(rule: Composition, outline: Outline) -> list[Problem]:
    """Return the reasons why a rule cannot use a model that came from a file.

    Where a site will describe the model in more detail, the model is refused only if no description could
    make it fit.
    """
    if not rule.needs_anatomy:
        return rule.misfits(outline)
    apart = Anatomy(blocks=tuple(range(len(outline.layers))))  # no ties, nothing frozen, each layer a block
    return rule.misfits(outline.model_copy(update={"anatomy": apart})) if outline.layers else []
