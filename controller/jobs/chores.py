"""A job's work in the background: orders, deletions and alarms. Orders and alarms end with an event."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from hansa.common.plugins.check import ANYTHING
from hansa.common.process.clock import Clock
from hansa.common.values.errors import Broken, PluginFailed, Stale, reason
from hansa.common.values.ids import ModelKey
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.orders import Merged, Order, Result
from hansa.controller.plugin.composition import Composition
from hansa.controller.storage.stores import Store
from hansa.controller.work.bench import Bench, Done
from hansa.controller.work.drafts import Drafts
from hansa.controller.work.examine import warm_up
from hansa.controller.work.workers import Workers

log = logging.getLogger(__name__)


@dataclass
class Traffic:
    """Bytes of models that a job has moved since the last version that accounts for them."""

    up: int = 0
    down: int = 0

    def take(self) -> tuple[int, int]:
        """Return both counts and reset them."""
        counts = self.up, self.down
        self.up = self.down = 0
        return counts


class Chores:
    """Starts what one job's effects ask for. Worker threads do everything that blocks."""

    def __init__(
        self,
        post: Callable[[ev.Event], "asyncio.Future[int]"],
        traffic: Traffic,
        bench: Bench,
        store: Store,
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._post, self._traffic, self._bench = post, traffic, bench
        self._store, self._workers, self._clock = store, workers, clock
        self._alarms: dict[str, asyncio.Task[None]] = {}  # by name; cancelled when the job has ended
        self._preparations: set[asyncio.Task[None]] = set()  # cancelled then, too
        self._duties: set[asyncio.Task[None]] = set()  # orders and deletions: finished even then

    def carry_out(self, effect: ef.Effect) -> None:
        """Start the work that an effect asks for."""
        match effect:
            case ef.StartOrder():
                self._start(self._order(effect), self._duties)
            case ef.SetAlarm(alarm, at):
                self._set_alarm(alarm, at)
            case ef.DropModels(keys):
                self._start(self._drop(keys), self._duties)
            case ef.JobEnded():
                self._bench.forget()

    def warm_up(self, rule: Composition) -> None:
        """Let the rule's parts load what they will need, while sites train."""
        self._start(self._warm_up(rule), self._preparations)

    async def finish(self) -> None:
        """Wait for everything that must be finished even after the job has ended."""
        while self._duties:
            await asyncio.wait(self._duties)

    def cancel(self) -> None:
        """Cancel everything that is under way."""
        for chore in (*self._alarms.values(), *self._preparations, *self._duties):
            chore.cancel()

    def _start(self, chore: Coroutine[None, None, None], group: "set[asyncio.Task[None]]") -> None:
        task = asyncio.create_task(chore)
        group.add(task)
        task.add_done_callback(group.discard)

    async def _order(self, start: ef.StartOrder) -> None:
        """Have an order carried out by a worker thread, and post its result or its failure."""
        drafts = self._bench.drafts()
        try:
            done = await self._carry_out(start, drafts)
        except ANYTHING as error:
            log.exception("job %s: %s failed", self._bench.job, self._bench.name(start.order))
            self._start(self._workers.io(drafts.discard), self._duties)
            self._fail(start.number, reason(error))
            return
        result = self._with_traffic(start.order, done.result)
        event = ev.OrderDone(at=self._clock.now(), order=start.number, result=result)
        try:
            await self._post(event)
        except Stale:  # the job no longer waits for it
            await self._drop(done.models)

    async def _carry_out(self, start: ef.StartOrder, drafts: Drafts) -> Done:
        """Wait for a worker thread. One that takes too long cannot be stopped: the job goes on without it."""
        io, order = self._workers.io, start.order
        if prepare := self._bench.preparation(order):
            await io(prepare)
        working = asyncio.ensure_future(io(self._bench.carry_out, start, drafts))
        try:
            seconds = self._bench.seconds(order)
            await asyncio.wait((working,), timeout=seconds)
            if not working.done():
                self._fail(start.number, f"{self._bench.name(order)} took longer than {seconds:g} s")
            return await working  # even if it is too late: the models that it stores must be dropped
        finally:
            working.cancel()

    def _with_traffic(self, order: Order, result: Result) -> Result:
        """Let a new version account for the traffic since the last one."""
        if not isinstance(result, Merged):
            return result
        if result.note:
            log.info("job %s: %s: %s", self._bench.job, self._bench.name(order), result.note)
        up, down = self._traffic.take()
        return result.model_copy(update={"bytes_up": up, "bytes_down": down})

    def _fail(self, order: int, why: str) -> None:
        self._post(ev.OrderFailed(at=self._clock.now(), order=order, reason=why))

    async def _warm_up(self, rule: Composition) -> None:
        for part in rule.parts.values():
            try:
                await self._workers.io(warm_up, part)
            except PluginFailed:
                log.exception("job %s: %s %r could not be prepared", self._bench.job, part.point, part.kind)

    def _set_alarm(self, alarm: str, at: float) -> None:
        """Set an alarm in place of one of the same name: many are set again long before they would ring."""
        if alarm in self._alarms:
            self._alarms[alarm].cancel()
        self._alarms[alarm] = asyncio.create_task(self._ring(alarm, at))

    async def _ring(self, alarm: str, at: float) -> None:
        await self._clock.sleep_until(at)
        del self._alarms[alarm]  # it is this one: another one of this name would have cancelled it
        self._post(ev.AlarmRang(at=self._clock.now(), alarm=alarm))

    async def _drop(self, keys: tuple[ModelKey, ...]) -> None:
        def delete() -> None:
            for key in keys:
                self._store.delete(key)  # harmless if it is repeated because the store was unavailable

        try:
            await self._workers.io(delete)
        except Broken as error:  # the job no longer needs them, and a restart drops unneeded models
            log.warning("job %s: models could not be removed: %s", self._bench.job, error)
