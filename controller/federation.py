"""The controller without its network: fleet, jobs, intake, store and journal, all owned by one event loop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress

from hansa import __version__
from hansa.common import faults
from hansa.common.clock import Clock
from hansa.common.errors import Broken, InvalidJob, NotFound, Stale, reason
from hansa.common.ids import JobId, ModelKey, SiteName, new_job_id, reference_key
from hansa.common.job import JobSpec, Problem
from hansa.common.job_check import located
from hansa.common.model import Manifest
from hansa.common.tasks import Anatomy
from hansa.common.words import listed
from hansa.controller.audit import Audit, digest_of
from hansa.controller.downloads import Downloads
from hansa.controller.engine import events as ev
from hansa.controller.engine.composition import Composition
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.outline import Outline, outline_of
from hansa.controller.fleet import CancelTask, DaemonRole, Fleet, Session
from hansa.controller.gate import Gate
from hansa.controller.intake import Intake
from hansa.controller.journal import JobRecord, Journal
from hansa.controller.records import NO_EVENTS, Records, read_again, read_spec
from hansa.controller.rules.compose import compose, composed_again
from hansa.controller.rules.resolve import software
from hansa.controller.runner import JobRunner
from hansa.controller.stores import Store
from hansa.controller.stores.recent import with_recent
from hansa.controller.submission import Brought, Submission
from hansa.controller.workers import Workers

log = logging.getLogger(__name__)


class Federation:
    """Everything a controller knows. Use it as an async context manager: entering resumes the journal's jobs."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        clock: Clock,
        heartbeat: float = 5.0,
        grace: float = 15.0,
        memory: int = 1 << 30,
    ) -> None:
        self.store = with_recent(store, memory)
        self.memory = memory  # bytes that models in transit and sums may take
        self.uploads = Gate(memory)
        self.clock = clock
        self.workers = Workers(self._store_turned)
        self.downloads = Downloads(self.store, self.workers, memory)
        self.intake = Intake(self)
        self.fleet = Fleet(clock, self, heartbeat, grace)
        self.audit = Audit(journal, self.workers, clock)
        self.records = Records(journal, self.workers, clock)
        self._runners: dict[JobId, JobRunner] = {}
        self._entering: set[asyncio.Task[JobRunner]] = set()
        self._tasks: asyncio.TaskGroup
        self._exit: AsyncExitStack
        self._manifests: dict[ModelKey, Manifest] = {}

    async def __aenter__(self) -> "Federation":
        await self.workers.io(self.store.sweep)
        self._exit = AsyncExitStack()
        self._exit.callback(self.workers.close)
        self._tasks = await self._exit.enter_async_context(asyncio.TaskGroup())
        self.audit.note("controller", "started", __version__, await self.audit.open())
        self._writer = self._tasks.create_task(self.audit.write())
        self._runs = [self._tasks.create_task(self._reap())]
        await self._resume_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.fleet.close()
        ended = {runner.id for runner in self._runners.values() if runner.machine.ended}
        closing = [run for run in self._runs if run.get_name() in ended]
        if closing and not self.workers.trouble:  # they tidy up and record their end, which takes a moment
            await asyncio.wait(closing, timeout=5)
        for run in [*self._runs, *self._entering]:
            run.cancel()
        self.audit.note("controller", "stopped", __version__)
        self.audit.close()
        await asyncio.wait((self._writer,), timeout=0 if self.workers.trouble else 5)
        self._writer.cancel()  # the store is away: what it has not taken is lost
        await self._exit.aclose()

    # Jobs.

    async def submit(
        self,
        spec: JobSpec,
        manifest: Manifest | None,
        frames: AsyncIterator[bytes],
        who: str = "unknown",
        reference: Manifest | None = None,
    ) -> JobRunner:
        """Check a job, store the models that it brings, and start it, even if the operator hangs up.

        The frames are those of its first model, if there is a manifest of it, and then those of its reference.
        """
        spec = read_again(spec)
        rule = compose(spec)
        spec = spec.model_copy(update={"made_with": software(rule)})
        job = new_job_id()
        models = Submission(manifest, reference)
        models.check(spec)
        outline = outline_of(manifest.spec) if manifest and rule.needs_outline else None
        wrong = _misfits(rule, outline) if outline else []
        if wrong:
            raise InvalidJob([located(problem, {}) for problem in wrong])
        brought = await models.take(job, frames, self.store, self.workers)
        entering = asyncio.create_task(  # not in the group: it may fail
            self._enter(job, models.named(spec), rule, brought, None if rule.needs_anatomy else outline, who)
        )
        self._entering.add(entering)
        entering.add_done_callback(self._entering.discard)
        return await asyncio.shield(entering)

    async def _enter(
        self,
        job: JobId,
        spec: JobSpec,
        rule: Composition,
        brought: Sequence[Brought],
        outline: Outline | None,
        who: str,
    ) -> JobRunner:
        """Make a job durable and start it."""
        now = self.clock.now()
        record = JobRecord(job, spec.model_dump_json(), now)
        words = f"{spec.name}: rule {spec.rule}, app {spec.app}"
        try:
            runner = JobRunner(Machine(job, spec, rule, now), self)  # a plugin may fail here
            await self.audit.record(who, "submitted", job, words, digest_of(record.spec))
            faults.reach("job-announced")
            await self.records.enter(record)
            faults.reach("job-entered")
            with suppress(Broken):  # the job is there and will run, whatever becomes of the log
                await self.audit.record("controller", "accepted", job)
            for model in brought:  # not before the journal knows the job: nobody would ever remove it
                await self.workers.io(model.draft.publish, model.manifest, model.peaks)
        finally:
            for model in brought:
                await self.workers.io(model.draft.discard)
        self._launch(runner, runner.machine.start())
        log.info("job %s (%s) submitted: rule %s, app %s", job, spec.name, spec.rule, spec.app)
        if spec.init:
            with suppress(Stale):  # the job says itself what its rule has against the model
                await runner.post(ev.ModelGiven(at=now, digest=spec.init, outline=outline))
        await runner.gather(self.fleet.sessions)
        return runner

    async def _resume_all(self) -> None:
        """Go on with the journal's jobs, and name those that only the store knows."""
        records = await self.records.all()
        for record in records:
            if record.id in self.audit.interrupted:  # it was entered, and the controller was killed in that moment
                self.audit.note("controller", "accepted", record.id)
        machines: list[tuple[JobRecord, Machine]] = []
        for record in records:  # no alarm is set before the clock knows all times that have been
            with self._burying(record):
                machines.append((record, await self._recalled(record)))
        for record, machine in machines:
            with self._burying(record):
                await self._resume(machine)
        self._runners = {record.id: self._runners[record.id] for record in records}  # in their order
        try:
            stored = await self.workers.io(self.store.keys)
        except Broken as error:  # the job whose model it is has failed for it above
            log.warning("jobs that the journal has lost are not looked for: %s", error)
            stored = []
        for key in stored:
            job = JobId(key.partition("/")[0])
            if job not in self._runners:
                why = f"the store has models of job {job}, but the journal has no record of it: it was evicted or lost"
                log.error(why)
                self._bury(JobRecord(job, "", self.clock.now()), why)

    @contextmanager
    def _burying(self, record: JobRecord) -> Iterator[None]:
        """List a job that cannot be resumed as failed: it must not keep the others from going on."""
        try:
            yield
        except Exception as error:
            log.exception("job %s cannot be resumed", record.id)
            self._bury(record, f"{reason(error)}; `hansa job verify` tells more")

    async def _recalled(self, record: JobRecord) -> Machine:
        spec = read_spec(record)
        machine = await self.records.catch_up(Machine(record.id, spec, composed_again(spec), record.at))
        self.clock.catch_up(record.at)
        return machine

    async def _resume(self, machine: Machine) -> None:
        spec, current = machine.spec, machine.state.current
        stored = await self.workers.io(self.store.keys, f"{machine.job}/")
        lost = ""
        reference, made = machine.state.reference, [key for key in stored if key != reference_key(machine.job)]
        if not machine.state.sequence and (spec.init or (reference is not None and reference not in stored)):
            lost = "the submission was interrupted"
        elif made and not machine.state.sequence:
            lost = NO_EVENTS
        elif self.audit.end(machine.job):
            lost = f"its journal lost how it ended: {self.audit.end(machine.job)}"
        elif current is not None and not await self.workers.io(self.store.has, current):
            lost = f"the store lost the job's models (version {machine.state.version}) while the controller was down"
        if lost and not machine.ended:
            runner = JobRunner(machine, self)
            self._launch(runner, [])
            runner.post(ev.EngineFailed(at=self.clock.now(), reason=lost))
            return
        for key in stored:
            if key not in machine.state.models:  # it came or was dropped in the moment of the crash
                await self.workers.io(self.store.delete, key)
        runner = JobRunner(machine, self)
        self._launch(runner, machine.resume())
        if not machine.ended:
            log.info("job %s (%s) resumed in round %d", machine.job, spec.name, machine.state.round)
            for site, role in runner.expected():
                self.fleet.expect(site, role)

    def _bury(self, record: JobRecord, why: str) -> None:
        """List a job that cannot be resumed as failed; its journal stays as it is, for `hansa job verify`."""
        unknown = JobSpec(name=record.id, app="unknown:app")
        try:
            spec = read_spec(record)
        except Broken:
            spec = unknown  # not even its words can be read
        # its own rule may be what is missing, and nothing will be asked of it
        machine = Machine(record.id, spec, compose(unknown), record.at)
        machine.abandon(why, record.at)
        self._runners[record.id] = JobRunner(machine, self)

    def _launch(self, runner: JobRunner, effects: list[Effect]) -> None:
        self._runners[runner.id] = runner
        ended = runner.machine.state.ended
        if ended is None or self.audit.lacks_end(runner.id, ended):
            run = self._tasks.create_task(self._run(runner, effects), name=runner.id)
            self._runs.append(run)
            run.add_done_callback(self._runs.remove)

    async def _run(self, runner: JobRunner, effects: list[Effect]) -> None:
        """Run a job and record its end, with the digest of its journal unless there is no time for it."""
        digest = ""
        try:
            await runner.run(effects)
            digest = await self.records.digest(runner.id)
        except Exception:  # a journal that cannot be read must not end the other jobs
            log.exception("job %s: its journal cannot be read for the audit log", runner.id)
        finally:
            state = runner.machine.state
            if runner.machine.ended:
                self.audit.note(
                    "controller", "ended", runner.id, f"{state.status}: {state.reason}", state.chain, digest
                )

    def runner(self, job: JobId) -> JobRunner:
        """Return a job by its id."""
        if job not in self._runners:
            raise NotFound(f"there is no job {job}")
        return self._runners[job]

    def find(self, words: str) -> JobRunner:
        """Return a job by its id, a unique beginning of it, or a name that only one job has."""
        if JobId(words) in self._runners:
            return self._runners[JobId(words)]
        named = [runner for runner in self._runners.values() if runner.machine.spec.name == words]
        begun = [runner for job, runner in self._runners.items() if words and job.startswith(words)]
        found = named or begun
        if not found:
            raise NotFound(f"there is no job {words!r}; `hansa job list` shows all")
        if len(found) > 1:
            raise NotFound(f"{words!r} could be any of the jobs {listed((runner.id for runner in found), 10)}")
        return found[0]

    @property
    def jobs(self) -> list[JobRunner]:
        """All jobs, newest first."""
        return list(reversed(self._runners.values()))

    def _store_turned(self) -> None:
        """Those who watch a job see that it waits for the store, and that it does no longer."""
        for runner in self._runners.values():
            runner.changed()

    async def manifest(self, key: ModelKey) -> Manifest:
        """Return a model's manifest; the last few are remembered."""
        if key not in self._manifests:

            def read() -> Manifest:
                with self.store.open(key) as model:
                    return model.manifest

            while len(self._manifests) >= 32:
                self._manifests.pop(next(iter(self._manifests)))
            self._manifests[key] = await self.workers.io(read)
        return self._manifests[key]

    # What the fleet tells.

    def attended(self, session: Session) -> None:
        """Offer a daemon to every job; tell it to drop what nobody waits for."""
        self.audit.moved(session.name, "joined", session.peer, f"instance {session.instance}")
        for task in list(session.in_hand):
            if not any(task in runner.machine.state.tasks for runner in self._runners.values()):
                session.send(CancelTask(task, "the task is over"))
        for runner in self._runners.values():
            runner.attended(session)

    def left(self, site: SiteName, role: DaemonRole) -> None:
        """Tell every job that a daemon is gone."""
        self.audit.moved(f"{role} {site}", "left", f"{role} {site}")
        for runner in self._runners.values():
            runner.left(site, role)

    async def _reap(self) -> None:
        while True:
            await self.clock.sleep_until(self.clock.now() + self.fleet.heartbeat)
            self.fleet.reap()


def _misfits(rule: Composition, outline: Outline) -> list[Problem]:
    """Return what a rule has against a model that came from a file.

    Where a site is going to tell more of it, it is refused only if nothing that the site may tell could save it.
    """
    if not rule.needs_anatomy:
        return rule.misfits(outline)
    apart = Anatomy(blocks=tuple(range(len(outline.layers))))  # no ties, nothing frozen, and every layer is a block
    return rule.misfits(outline.model_copy(update={"anatomy": apart})) if outline.layers else []
