"""The shell around one job's engine: it handles events, journals them, and carries out their effects."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hansa.common.plugins.check import ANYTHING
from hansa.common.process import faults
from hansa.common.process.clock import Clock
from hansa.common.values.errors import InvalidInput, InvalidJob, Stale, one_line, reason
from hansa.common.values.history import VersionView
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.receipts import Receipt
from hansa.common.values.resolved import ModelOrigin, Resolved
from hansa.common.values.tasks import Task
from hansa.common.values.views import JobView
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merge
from hansa.controller.engine.state import Happening
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.fleet.sessions import DaemonRole, Session
from hansa.controller.jobs.chores import Chores, Traffic
from hansa.controller.jobs.delivery import Delivery
from hansa.controller.jobs.records import Records
from hansa.controller.jobs.views import Surroundings, history_views, job_view, origin_of
from hansa.controller.rulebook.resolve import resolved
from hansa.controller.storage.journal import Entry
from hansa.controller.storage.stores import Store
from hansa.controller.work.bench import Bench
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)
BATCH = 64  # events that are made durable together
JOURNALED = {  # points at which tests kill a controller, by the kind of an event or of an order's result
    "update": "update-journaled",
    "described": "description-journaled",
    "merge": "merge-journaled",
}
Post = tuple[ev.Event, "asyncio.Future[int]"]


@dataclass(frozen=True)
class _Outcome:
    """The outcome of an event, and the effects to carry out once it is durable."""

    event: ev.Event
    done: "asyncio.Future[int]"
    effects: list[ef.Effect] = field(default_factory=list)
    entry: Entry | None = None  # None if the event was refused
    refusal: Stale | None = None
    fault: str = ""  # why the engine failed on it


class JobRunner:
    """Runs one job. All methods belong to the event loop; only `run` waits."""

    def __init__(
        self,
        machine: Machine,
        *,
        store: Store,
        workers: Workers,
        clock: Clock,
        fleet: Fleet,
        records: Records,
        memory: int,  # bytes that the sums of merges may take
        discard: Callable[[TaskId], None],  # throws away the frames of an update that have arrived
    ) -> None:
        self.machine = machine
        self.traffic = Traffic()
        self.abandoned = False  # whether it ended without an event in the journal
        self._durable = len(machine.state.chronicle)  # entries that a restart would tell in the same words
        self._workers, self._clock, self._fleet, self._records = workers, clock, fleet, records
        self._inbox: asyncio.Queue[Post] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._delivery = Delivery(machine.job, fleet, discard)
        bench = Bench(machine.job, machine.rule, store, workers.arithmetic, memory)
        self._chores = Chores(self.post, self.traffic, bench, store, workers, clock)

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.machine.job

    @property
    def backlog(self) -> int:
        """How many events wait to be handled."""
        return self._inbox.qsize()

    def post(self, event: ev.Event) -> "asyncio.Future[int]":
        """Queue an event; the future yields its journal number once it is durable and has taken effect."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(mark_as_seen)
        if self.machine.ended:
            done.set_exception(Stale(f"job {self.id} has ended"))
        else:
            self._inbox.put_nowait((event, done))
        return done

    async def run(self, effects: list[ef.Effect]) -> None:
        """Carry out the first effects, then handle events until the job has ended."""
        try:
            self._durable = len(self.machine.state.chronicle)
            self._chores.warm_up(self.machine.rule)
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
            self._turn_away()  # a merge may be waiting for its event, which comes too late
            await self._chores.finish()
        finally:
            self._chores.cancel()
            self._turn_away()

    def _abandon(self, why: str) -> None:
        """End the job without an event."""
        self.abandoned = True
        self._carry_out(self.machine.abandon(why, self.now()))
        self.changed()

    def _turn_away(self) -> None:
        """Refuse everything that is queued: the job has ended."""
        while not self._inbox.empty():
            _refuse(self._inbox.get_nowait()[1], Stale(f"job {self.id} has ended"))

    async def _handle(self, batch: "list[Post]") -> None:
        """Apply events, make them durable together, and only then answer and act.

        Only merges start earlier: the result of a merge is invisible until an event of its own is durable,
        and after a crash, models that the journal does not know are swept from the store.
        """
        outcomes: list[_Outcome] = []
        while batch and not (outcomes and outcomes[-1].fault):
            outcomes.append(self._apply(*batch.pop(0)))
        effects = [effect for outcome in outcomes for effect in outcome.effects]
        self._carry_out([effect for effect in effects if _is_merge(effect)])
        entries = [outcome.entry for outcome in outcomes if outcome.entry]
        self._delivery.unsent = {effect.task.id for effect in effects if isinstance(effect, ef.SendTask)}
        if entries:
            try:
                await self._records.append(self.id, entries)
                if not outcomes[-1].fault:  # else the state, and what it tells, is half changed
                    self._durable = len(self.machine.state.chronicle)
                    await self._records.save(self.machine)
            except Exception as error:
                log.exception("job %s: its journal cannot be continued", self.id)
                for done in [*(outcome.done for outcome in outcomes), *(done for _, done in batch)]:
                    _refuse(done, Stale(f"job {self.id} failed"))
                self._abandon(reason(error))
                return
        self._delivery.unsent = set()
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
        """End a job whose rule failed on an event, from the state before it: the event is not journaled."""
        failed = self.machine
        restored = Machine(self.id, failed.spec, failed.rule, failed.state.submitted)
        self.machine = await self._records.catch_up(restored)
        ending = ev.EngineFailed(at=self.now(), reason=f"the rule failed: {fault}")
        await self._handle([(ending, asyncio.get_running_loop().create_future()), *batch])

    def _conclude(self, outcome: "_Outcome") -> None:
        """Carry out the effects of a durable event, and answer its caller."""
        if outcome.entry:
            event = outcome.event
            if point := JOURNALED.get(event.result.kind if isinstance(event, ev.OrderDone) else event.kind):
                faults.reach(point)
            self._delivery.settle(outcome.event)
            self._carry_out([effect for effect in outcome.effects if not _is_merge(effect)])
        if outcome.refusal:
            _refuse(outcome.done, outcome.refusal)
        elif outcome.entry and not outcome.done.done():
            outcome.done.set_result(outcome.entry.sequence)

    def _carry_out(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ef.JobEnded):
                log.info("job %s %s: %s", self.id, effect.status, effect.reason)
            self._delivery.carry_out(effect)
            self._chores.carry_out(effect)

    def now(self) -> float:
        """Return the time for an event that happens now."""
        return self._clock.now()

    # Changes in the fleet.

    def catch_up(self, session: Session) -> None:
        """Send a daemon what it has missed."""
        self._delivery.catch_up(session, self.machine)

    def left(self, site: SiteName, role: DaemonRole) -> None:
        """Tell the job that a daemon has left."""
        self.post(ev.SiteLeft(at=self.now(), site=site, role=role))

    # Questions of operators and sites.

    def open_task(self, task: TaskId, site: SiteName) -> Task:
        """Return an open task of a site or raise Stale."""
        open_task = self.machine.state.tasks.get(task)
        if open_task is None or open_task.site != site:
            raise Stale(f"task {task} is over")
        return open_task

    def receipt(self, task: TaskId, site: SiteName) -> Receipt | None:
        """Return the receipt of a site's last update, if it was for this task."""
        receipt = self.machine.state.receipts.get(site)
        return receipt if receipt is not None and receipt.task == task else None

    def changed(self) -> None:
        """Wake everybody who watches the job."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Return an event that the next change sets; take it before reading the state, to miss nothing."""
        return self._changed

    @cached_property
    def resolved(self) -> Resolved | None:
        """The job with every default filled in; None if it cannot be read or its rule is no longer known."""
        if self.machine.ended and not self.machine.state.sequence:
            return None
        try:
            return resolved(self.machine.spec)
        except (InvalidJob, KeyError, ValueError):
            log.warning("job %s: its defaults cannot be filled in", self.id, exc_info=True)
            return None

    def chronicle(self, after: int, most: int) -> Sequence[Happening]:
        """Return what happened after an entry; only what is durable, so that a restart tells the same."""
        if after > self._durable:
            raise InvalidInput(f"job {self.id} has {self._durable} events; there is none after {after}")
        return self.machine.state.chronicle[after : min(after + most, self._durable)]

    @property
    def silent(self) -> bool:
        """Whether the chronicle will have no more entries than it has now."""
        ended, told = self.machine.ended, self._durable == len(self.machine.state.chronicle)
        return ended and (told or self.abandoned)

    def origin(self, version: int) -> ModelOrigin:
        """Return the origin that is written into an exported community model."""
        return origin_of(self.machine, version, self.resolved)

    def whole_view(self) -> JobView:
        """Return the job with its defaults filled in, without its history."""
        return self.view_with().model_copy(update={"resolved": self.resolved})

    def list_view(self) -> JobView:
        """Return the job as lists of jobs show it."""
        return job_view(self.machine, self._surroundings(), people=False)

    def view(self, since: int = 0) -> JobView:
        """Return the job as operators see it, with the versions from `since` on."""
        return self.view_with(history_views(self.machine, since))

    def view_with(self, history: Iterable[VersionView] = (), survey: bool = True) -> JobView:
        """Return the job as operators see it, with these versions."""
        return job_view(self.machine, self._surroundings(), history=history, survey=survey)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            fleet=self._fleet,
            now=self.now(),
            bytes_up=self.traffic.up,
            bytes_down=self.traffic.down,
            trouble=self._workers.trouble,
        )


def _is_merge(effect: ef.Effect) -> bool:
    return isinstance(effect, ef.StartOrder) and isinstance(effect.order, Merge)


def _refuse(done: "asyncio.Future[int]", error: Stale) -> None:
    """Answer with an error, unless the caller has hung up."""
    if not done.done():
        done.set_exception(error)


def mark_as_seen(done: "asyncio.Future[Any]") -> None:
    """Mark an outcome as seen: the caller may be gone, or may not care whether it failed."""
    if not done.cancelled():
        done.exception()
