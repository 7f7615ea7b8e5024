"""The shell around one job's engine: events go in one at a time, are journaled, and their effects are carried out."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from hansa.common.job.resolved import ModelOrigin, Resolved
from hansa.common.plugins.check import ANYTHING
from hansa.common.process import faults
from hansa.common.values.errors import InvalidJob, Stale, one_line, reason
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.tasks import Receipt, Task
from hansa.common.values.views import JobView
from hansa.common.values.words import listed
from hansa.controller.api.views import Surroundings, job_view
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.accounts.apps import difference
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merge
from hansa.controller.jobs.chores import Chores, Traffic
from hansa.controller.jobs.fleet import ROLES, CancelTask, DaemonRole, Session
from hansa.controller.rulebook.resolve import resolved
from hansa.controller.storage.journal import Entry

if TYPE_CHECKING:
    from hansa.controller.jobs.federation import Federation

log = logging.getLogger(__name__)
BATCH = 64  # events that are made durable together
MOMENT = 5.0  # seconds that a submission waits at most for what comes of the sites that attend
JOURNALED = {  # points at which tests kill a controller, by the kind of an event or of an order's result
    "update": "update-journaled",
    "described": "description-journaled",
    "merge": "merge-journaled",
}
Post = tuple[ev.Event, "asyncio.Future[int]"]


@dataclass(frozen=True)
class _Outcome:
    """What came of an event, and what it asks for once it is durable."""

    event: ev.Event
    done: "asyncio.Future[int]"
    effects: list[ef.Effect] = field(default_factory=list)
    entry: Entry | None = None  # none if it was refused
    refusal: Stale | None = None
    fault: str = ""  # why the engine failed on it


class JobRunner:
    """Runs one job. All methods belong to the event loop; none but `run` waits."""

    def __init__(self, machine: Machine, federation: "Federation") -> None:
        self.machine = machine
        self.traffic = Traffic()
        self.abandoned = False  # it ended, but not in the journal
        self._federation = federation
        self._inbox: asyncio.Queue[Post] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._unsent: set[TaskId] = set()  # tasks of events that are not durable yet
        self._chores = Chores(self, federation)

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.machine.job

    def post(self, event: ev.Event) -> "asyncio.Future[int]":
        """Queue an event; the future gives its number in the journal once it is durable and has taken effect."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_heed)
        if self.machine.ended:
            done.set_exception(Stale(f"job {self.id} has ended"))
        else:
            self._inbox.put_nowait((event, done))
        return done

    async def run(self, effects: list[ef.Effect]) -> None:
        """Carry out the first effects, then handle events until the job has ended."""
        try:
            self._chores.warm_up()
            self._carry_out(effects)
            while not self.machine.ended:
                batch = [await self._inbox.get()]
                while len(batch) < BATCH and not self._inbox.empty():
                    batch.append(self._inbox.get_nowait())
                try:
                    await self._handle(batch.copy())
                except Exception as error:  # a fault in one job must not end the others
                    log.exception("job %s: unexpected error", self.id)
                    for _, done in batch:
                        _refuse(done, Stale(f"job {self.id} failed"))
                    self._abandon(f"unexpected error: {one_line(error)}")
            self._turn_away()  # a merge may wait for its event, which comes too late
            await self._chores.finish()
        finally:
            self._chores.cancel()
            self._turn_away()

    def _abandon(self, why: str) -> None:
        """End the job without an event."""
        self.abandoned = True
        self._carry_out(self.machine.abandon(why, self._now()))
        self.changed()

    def _turn_away(self) -> None:
        """Refuse whatever is queued: the job has ended."""
        while not self._inbox.empty():
            _refuse(self._inbox.get_nowait()[1], Stale(f"job {self.id} has ended"))

    async def _handle(self, batch: "list[Post]") -> None:
        """Apply events, make them durable together, and only then answer and act.

        Only a merge begins before: its result shows nowhere until an event of its own is durable, and
        whatever the store holds that the journal does not know is swept after a crash.
        """
        outcomes: list[_Outcome] = []
        while batch and not (outcomes and outcomes[-1].fault):
            outcomes.append(self._apply(*batch.pop(0)))
        for outcome in outcomes:
            self._carry_out([effect for effect in outcome.effects if _is_merge(effect)])
        entries = [outcome.entry for outcome in outcomes if outcome.entry]
        self._unsent = {
            e.task.id for outcome in outcomes for e in outcome.effects if isinstance(e, ef.SendTask)
        }
        if entries:
            try:
                await self._federation.records.append(self.id, entries)
                if not outcomes[-1].fault:  # it has left the state half changed
                    await self._federation.records.save(self.machine)
            except Exception as error:
                log.exception("job %s: its journal cannot be continued", self.id)
                for done in [*(outcome.done for outcome in outcomes), *(done for _, done in batch)]:
                    _refuse(done, Stale(f"job {self.id} failed"))
                self._abandon(reason(error))
                return
        self._unsent = set()
        for outcome in outcomes:
            self._conclude(outcome)
        if entries:
            self.changed()
        if outcomes[-1].fault:
            await self._fail(outcomes[-1].fault, batch)

    def _apply(self, event: ev.Event, done: "asyncio.Future[int]") -> "_Outcome":
        """Let the engine handle an event."""
        try:
            effects = self.machine.handle(event)
        except Stale as error:  # nothing was changed before
            return _Outcome(event, done, refusal=error)
        except ANYTHING as error:
            log.exception("job %s: the engine failed on %s", self.id, event.kind)
            return _Outcome(event, done, refusal=Stale(f"job {self.id} failed"), fault=reason(error))
        receipt = self.machine.issued.model_dump_json() if self.machine.issued else ""
        return _Outcome(
            event, done, effects, Entry(self.machine.state.sequence, event.model_dump_json(), receipt)
        )

    async def _fail(self, fault: str, batch: "list[Post]") -> None:
        """End a job whose rule failed on an event, from the state before it: a replay knows nothing of that event."""
        held, records = self.machine, self._federation.records
        self.machine = await records.catch_up(Machine(self.id, held.spec, held.rule, held.state.submitted))
        failed = ev.EngineFailed(at=self._now(), reason=f"the rule failed: {fault}")
        await self._handle([(failed, asyncio.get_running_loop().create_future()), *batch])

    def _conclude(self, outcome: "_Outcome") -> None:
        """Act on an event that is durable, and answer whoever brought it."""
        if outcome.entry:
            event = outcome.event
            if point := JOURNALED.get(event.result.kind if isinstance(event, ev.OrderDone) else event.kind):
                faults.reach(point)
            self._clear_hands(outcome.event)
            self._carry_out([effect for effect in outcome.effects if not _is_merge(effect)])
        if outcome.refusal:
            _refuse(outcome.done, outcome.refusal)
        elif outcome.entry and not outcome.done.done():
            outcome.done.set_result(outcome.entry.sequence)

    def _carry_out(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.SendTask(task):
                    session = self._federation.fleet.find(task.site, role_of(task))
                    if session and task.id not in session.in_hand:
                        session.send(task)
                case ef.WithdrawTask(task, why):
                    self._federation.intake.discard(task.id)
                    session = self._federation.fleet.find(task.site, role_of(task))
                    if session:
                        session.progress.pop(task.id, None)
                        session.send(CancelTask(task.id, why))
                case ef.Pulse(site, steps):
                    session = self._federation.fleet.find(site, "learner")
                    if session:
                        session.pulse(self.id, steps)
                case ef.JobEnded(status, why):
                    log.info("job %s %s: %s", self.id, status, why)
            self._chores.carry_out(effect)

    def _clear_hands(self, event: ev.Event) -> None:
        """An answered task is no longer in its daemon's hands."""
        task, site = getattr(event, "task", None), getattr(event, "site", None)
        if task and site:
            for role in ROLES:
                session = self._federation.fleet.find(site, role)
                if session:
                    session.in_hand.discard(task)
                    session.progress.pop(task, None)

    def _now(self) -> float:
        return self._federation.clock.now()

    # What the fleet tells.

    def suits(self, session: Session) -> bool:
        """Whether the job's app can be used by a daemon."""
        app = session.apps.get(self.machine.spec.app)
        return app is not None and not app.error

    async def gather(self, sessions: Sequence[Session]) -> None:
        """Offer the daemons that attend to a new job; wait a moment, so that its operator is told what came of it.

        Those that cannot take part come first, and what keeps the others from working together: otherwise the
        job might begin with the first few.
        """
        fit = [session for session in sessions if self.suits(session)]
        posts = [self.attended(session) for session in sessions if not self.suits(session)]
        app = self.machine.spec.app
        why = difference(self.machine.spec, {s.name: s.apps[app].stated for s in fit if self._invites(s)})
        if why:
            posts.append(self.post(ev.EngineFailed(at=self._now(), reason=why)))
        posts += [self.attended(session) for session in fit]
        awaited = [post for post in posts if post is not None]
        if awaited:
            await asyncio.wait(awaited, timeout=MOMENT)

    def _invites(self, session: Session) -> bool:
        names = self.machine.spec.sites.names
        return names is None or session.site in names

    def attended(self, session: Session) -> "asyncio.Future[int] | None":
        """Offer a daemon to the job and hand it what waits for it; return what comes of the offer."""
        if self.machine.ended or not self._invites(session):
            return None
        app = session.apps.get(self.machine.spec.app)
        if app is None or app.error:
            allowed = listed(sorted(session.apps)) or "none"
            reason = f"app {self.machine.spec.app!r} is not allowed there (allowed: {allowed})"
            return self.post(
                ev.SiteUnfit(
                    at=self._now(), site=session.site, role=session.role, reason=app.error if app else reason
                )
            )
        now, examples = self._now(), app.examples
        offer = ev.SiteJoined(at=now, site=session.site, role=session.role, examples=examples, app=app.stated)
        joined = self.post(offer)
        for task in self.machine.tasks_of(session.site):
            if role_of(task) == session.role and task.id not in session.in_hand | self._unsent:
                session.send(task)
        steps = self.machine.pulse_of(session.site) if session.role == "learner" else None
        if steps is not None:  # it may have missed some while it was away
            session.pulse(self.id, steps)
        return joined

    def left(self, site: SiteName, role: DaemonRole) -> None:
        """A daemon is gone."""
        self.post(ev.SiteLeft(at=self._now(), site=site, role=role))

    def expected(self) -> list[tuple[SiteName, DaemonRole]]:
        """Return the daemons that the job believes to be here."""
        state = self.machine.state
        learners: list[tuple[SiteName, DaemonRole]] = [(site, "learner") for site in state.learners]
        return learners + [(site, "evaluator") for site in state.evaluators]

    # What operators and sites ask.

    def open_task(self, task: TaskId, site: SiteName) -> Task:
        """Return a task that a site has yet to answer or raise Stale."""
        held = self.machine.state.tasks.get(task)
        if held is None or held.site != site:
            raise Stale(f"task {task} is over")
        return held

    def receipt(self, task: TaskId, site: SiteName) -> Receipt | None:
        """Return the receipt of a site's last update, if it answered this task."""
        receipt = self.machine.state.receipts.get(site)
        return receipt if receipt is not None and receipt.task == task else None

    def changed(self) -> None:
        """Wake those who watch."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Return an event that is set by the next change; take it before looking, so that none is missed."""
        return self._changed

    @cached_property
    def resolved(self) -> Resolved | None:
        """The job with every default filled in; none if it cannot be read, or its rule is not known any more."""
        if self.machine.ended and not self.machine.state.sequence:
            return None
        try:
            return resolved(self.machine.spec)
        except (InvalidJob, KeyError, ValueError):
            log.warning("job %s: its rule cannot be described", self.id, exc_info=True)
            return None

    def origin(self, version: int) -> ModelOrigin:
        """Return what an exported community model says of itself."""
        record = self.machine.state.history[version]
        return ModelOrigin(
            job=self.id,
            name=self.machine.spec.name,
            version=version,
            digest=record.digest,
            receipt=record.receipt,
            resolved=self.resolved,
        )

    def whole_view(self) -> JobView:
        """Return what operators see of a job that they ask for by itself."""
        return self.view().model_copy(update={"resolved": self.resolved})

    def view(self, history: bool = True, since: int = 0) -> JobView:
        """Return what operators see; of the history, the versions from `since` on."""
        around = Surroundings(
            fleet=self._federation.fleet,
            now=self._now(),
            bytes_up=self.traffic.up,
            bytes_down=self.traffic.down,
            trouble=self._federation.workers.trouble,
        )
        return job_view(self.machine, around, history, since)


def _is_merge(effect: ef.Effect) -> bool:
    return isinstance(effect, ef.StartOrder) and isinstance(effect.order, Merge)


def role_of(task: Task) -> DaemonRole:
    """Return which daemon of a site does such tasks."""
    return "evaluator" if task.work.kind == "evaluate" else "learner"


def _refuse(done: "asyncio.Future[int]", error: Stale) -> None:
    """Answer with an error, unless whoever asked has hung up."""
    if not done.done():
        done.set_exception(error)


def _heed(done: "asyncio.Future[int]") -> None:
    """Mark an outcome as seen: whoever does not await it does not care whether the event was stale."""
    if not done.cancelled():
        done.exception()
