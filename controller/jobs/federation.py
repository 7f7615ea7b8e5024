"""The controller without its network: fleet, jobs, intake, store and journal, all owned by one event loop."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress

from hansa import __version__
from hansa.common.job.check import located
from hansa.common.job.spec import JobSpec, Problem
from hansa.common.models.model import Manifest
from hansa.common.process import faults
from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, InvalidJob, NotFound, Stale
from hansa.common.values.ids import JobId, ModelKey, SiteName, new_job_id
from hansa.common.values.results import Anatomy
from hansa.common.values.views import JobView
from hansa.common.values.words import listed
from hansa.controller.audit.log import Audit, digest_of
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.machine import Machine
from hansa.controller.jobs.archive import Archive, summary_of
from hansa.controller.jobs.fleet import CancelTask, DaemonRole, Fleet, Session
from hansa.controller.jobs.records import Records, read_again
from hansa.controller.jobs.resuming import Resumption
from hansa.controller.jobs.runner import JobRunner
from hansa.controller.jobs.workers import Workers
from hansa.controller.plugin.composition import Composition
from hansa.controller.plugin.outline import Outline, outline_of
from hansa.controller.rulebook.compose import compose
from hansa.controller.rulebook.resolve import software
from hansa.controller.storage.journal import JobRecord, Journal
from hansa.controller.storage.stores import Store
from hansa.controller.storage.stores.recent import with_recent
from hansa.controller.transfers.downloads import Downloads
from hansa.controller.transfers.gate import Gate
from hansa.controller.transfers.intake import Intake
from hansa.controller.transfers.submission import Brought, Submission

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
        self._resumption = Resumption(self)
        self.archive = Archive(self._resumption.load)
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
        await self._resumption.resume_all()
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

        The frames are those of its first model, if there is a manifest of it, and then those of its
        reference.
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
        self.launch(runner, runner.machine.start())
        log.info("job %s (%s) submitted: rule %s, app %s", job, spec.name, spec.rule, spec.app)
        if spec.init:
            with suppress(Stale):  # the job says itself what its rule has against the model
                await runner.post(ev.ModelGiven(at=now, digest=spec.init, outline=outline))
        await runner.gather(self.fleet.sessions)
        return runner

    def adopt(self, runner: JobRunner) -> None:
        """List a job."""
        self._runners[runner.id] = runner

    def sort(self, jobs: Sequence[JobId]) -> None:
        """List jobs in the order of their submission."""
        self._runners = {job: self._runners[job] for job in jobs if job in self._runners}

    def launch(self, runner: JobRunner, effects: list[Effect]) -> None:
        """List a job and let it run, or record its end."""
        self.adopt(runner)
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
                words = (f"{state.status}: {state.reason}", state.chain, digest)
                recorded = self.audit.note("controller", "ended", runner.id, *words)
        if digest and not runner.abandoned:
            await self._conclude(runner, recorded)

    async def _conclude(self, runner: JobRunner, recorded: "asyncio.Future[None]") -> None:
        """Sum up a job whose end is durable, so that the next start need not read its events."""
        try:
            await recorded
            await self.records.conclude(runner.id, summary_of(runner).model_dump_json())
        except Broken as error:  # it only saves time
            log.warning("job %s is not summed up: %s", runner.id, error)

    @property
    def known(self) -> list[JobId]:
        """The ids of all jobs."""
        return [*self._runners, *(job for job in self.archive.summaries if job not in self._runners)]

    def runner(self, job: JobId) -> JobRunner:
        """Return a job that is under way, or has ended since the start, by its id."""
        if job in self.archive.summaries:
            raise Stale(f"job {job} has ended")
        if job not in self._runners:
            raise NotFound(f"there is no job {job}")
        return self._runners[job]

    async def recall(self, job: JobId) -> JobRunner:
        """Return any job by its id."""
        return self._runners[job] if job in self._runners else await self.archive.recall(job)

    def identify(self, words: str) -> JobId:
        """Return the id of a job from it, a unique beginning of it, or a name that only one job has."""
        if words in self.known:
            return JobId(words)
        names = {job: summary.view.name for job, summary in self.archive.summaries.items()}
        names |= {job: runner.machine.spec.name for job, runner in self._runners.items()}
        found = [job for job, name in names.items() if name == words]
        found = found or [job for job in names if words and job.startswith(words)]
        if not found:
            raise NotFound(f"there is no job {words!r}; `hansa job list` shows all")
        if len(found) > 1:
            raise NotFound(f"{words!r} could be any of the jobs {listed(found, 10)}")
        return found[0]

    async def find(self, words: str) -> JobRunner:
        """Return a job by its id, a unique beginning of it, or a name that only one job has."""
        return await self.recall(self.identify(words))

    def views(self) -> list[JobView]:
        """Return all jobs as they are listed, newest first."""
        views = {(summary.submitted, job): summary.view for job, summary in self.archive.summaries.items()}
        views |= {
            (runner.machine.state.submitted, job): runner.view(history=False)
            for job, runner in self._runners.items()
        }
        return [views[place] for place in sorted(views, reverse=True)]

    def statuses(self) -> Counter[str]:
        """Count jobs by their status."""
        ended = Counter(summary.view.status for summary in self.archive.summaries.values())
        return ended + Counter(runner.machine.state.status for runner in self._runners.values())

    @property
    def jobs(self) -> list[JobRunner]:
        """Jobs that are under way or have ended since the start, newest first."""
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

    Where a site is going to tell more of it, it is refused only if nothing that the site may tell could save
    it.
    """
    if not rule.needs_anatomy:
        return rule.misfits(outline)
    apart = Anatomy(
        blocks=tuple(range(len(outline.layers)))
    )  # no ties, nothing frozen, and every layer is a block
    return rule.misfits(outline.model_copy(update={"anatomy": apart})) if outline.layers else []
