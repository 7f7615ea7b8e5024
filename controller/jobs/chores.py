"""A job's work in the background: merges, studies, examinations, deletions, alarms. What comes of each is an event."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hansa.common.plugins.check import ANYTHING
from hansa.common.plugins.registry import blame
from hansa.common.values.errors import Broken, HansaError, Stale, reason
from hansa.common.values.ids import ModelKey, hop_key
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.storage.stores import Draft
from hansa.controller.work.distance import measure
from hansa.controller.work.examine import Found, examine
from hansa.controller.work.hops import study
from hansa.controller.work.merge import Merger, discard

if TYPE_CHECKING:
    from hansa.controller.jobs.federation import Federation
    from hansa.controller.jobs.runner import JobRunner

log = logging.getLogger(__name__)


@dataclass
class Traffic:
    """Bytes of models that a job has moved since the last version that accounts for them."""

    up: int = 0
    down: int = 0

    def take(self) -> tuple[int, int]:
        """Return both counts and begin anew."""
        taken = self.up, self.down
        self.up = self.down = 0
        return taken


class Chores:
    """Starts what one job's effects ask for; whatever blocks is done by worker threads."""

    def __init__(self, runner: "JobRunner", federation: "Federation") -> None:
        self._runner, self._federation = runner, federation
        pool, memory = federation.workers.arithmetic, federation.memory // 2
        self._merger = Merger(runner.id, federation.store, pool, memory)
        self._alarms: dict[str, asyncio.Task[None]] = {}  # by name; void once the job has ended
        self._preparations: set[asyncio.Task[None]] = set()  # void then, too
        self._duties: set[asyncio.Task[None]] = set()  # merges and deletions: finished even then

    def carry_out(self, effect: ef.Effect) -> None:
        """Start the work that an effect asks for."""
        match effect:
            case ef.StartMerge(plan):
                self._start(self._merge(plan), self._duties)
            case ef.StartStudy(study_plan):
                self._start(self._study(study_plan), self._duties)
            case ef.StartMeasurement(model):
                self._start(self._measure(model), self._duties)
            case ef.StartExamination(inquiry):
                self._start(self._examine(inquiry), self._duties)
            case ef.SetAlarm(alarm, at):
                self._set_alarm(alarm, at)
            case ef.DropModels(keys):
                self._start(self._drop(keys), self._duties)
            case ef.JobEnded():
                self._merger.forget()

    def warm_up(self) -> None:
        """Let parts load what they will need while sites train."""
        self._start(self._warm_up(), self._preparations)

    async def finish(self) -> None:
        """Wait for everything that must not be left undone."""
        while self._duties:
            await asyncio.wait(self._duties)

    def cancel(self) -> None:
        """Give up whatever is under way."""
        for chore in (*self._alarms.values(), *self._preparations, *self._duties):
            chore.cancel()

    def _start(self, chore: Coroutine[None, None, None], group: "set[asyncio.Task[None]]") -> None:
        task = asyncio.create_task(chore)
        group.add(task)
        task.add_done_callback(group.discard)

    def _now(self) -> float:
        return self._federation.clock.now()

    async def _merge(self, plan: ef.MergePlan) -> None:
        drafts: list[Draft] = []
        try:
            made = await self._federation.workers.io(self._merger.merge, self._runner.machine, plan, drafts)
        except ANYTHING as error:
            log.exception("job %s: merging version %d failed", self._runner.id, plan.version)
            self._start(self._federation.workers.io(discard, drafts), self._duties)
            why = str(error) if isinstance(error, HansaError) else blame(error)
            self._runner.post(ev.MergeFailed(at=self._now(), version=plan.version, reason=why))
            return
        distance, trouble = await self._distance(self._merger.key(plan.version, ""))
        note = "; ".join(said for said in (made.note, trouble and f"no distance: {trouble}") if said)
        up, down = self._runner.traffic.take()
        moments = {name: manifest.digest.hex() for name, manifest in made.moments.items()}
        event = ev.Merged(
            at=self._now(),
            version=plan.version,
            digest=made.manifest.digest.hex(),
            moments=moments,
            note=note,
            distance=distance,
            bytes_up=up,
            bytes_down=down,
        )
        if note:
            log.info("job %s, version %d: %s", self._runner.id, plan.version, note)
        try:
            await self._runner.post(event)
        except Stale:
            await self._drop(tuple(self._merger.key(plan.version, name) for name in ("", *moments)))

    async def _measure(self, first: ModelKey) -> None:
        """Compare version 0 with the job's reference while training begins."""
        distance, trouble = await self._distance(first)
        self._runner.post(ev.Measured(at=self._now(), distance=distance, trouble=trouble))

    async def _distance(self, model: ModelKey) -> tuple[float | None, str]:
        """Return how far a model is from the job's reference, if it has one, or why that cannot be told."""
        reference = self._runner.machine.state.reference
        if reference is None:
            return None, ""
        try:
            return await self._federation.workers.io(measure, self._federation.store, model, reference), ""
        except Exception as error:
            log.warning("job %s: model %s cannot be measured", self._runner.id, model, exc_info=True)
            return None, reason(error)

    async def _study(self, plan: ef.StudyPlan) -> None:
        """Look at the models of a hop while training goes on."""
        federation, event = (
            self._federation,
            ev.HopStudied(at=self._now(), version=plan.version, hop=plan.hop),
        )
        try:
            apart, digest = await federation.workers.io(
                study,
                self._runner.id,
                plan,
                federation.store,
                federation.workers.arithmetic,
                federation.memory // 4,
            )
            found: dict[str, object] = {"divergence": apart, "digest": digest}
        except Exception as error:
            log.exception("job %s: the models of hop %d cannot be looked at", self._runner.id, plan.hop)
            found = {"trouble": reason(error)}
        try:
            await self._runner.post(event.model_copy(update={"at": self._now(), **found}))
        except Stale:
            await self._drop((hop_key(self._runner.id, plan.version, plan.hop),))

    async def _warm_up(self) -> None:
        """Let parts load what they will need while sites train."""
        for part in self._runner.machine.rule.parts.values():
            try:
                await self._federation.workers.io(part.warm_up)
            except ANYTHING:
                log.exception("job %s: %s %r is not ready", self._runner.id, part.point, part.kind)

    async def _examine(self, number: int) -> None:
        inquiry = self._runner.machine.state.inquiries.get(number)
        if inquiry is None:
            return  # it is over already
        part, federation = self._runner.machine.rule.parts[inquiry.point], self._federation
        examining: asyncio.Future[Found] | None = None
        try:
            await federation.workers.io(
                part.warm_up
            )  # what is being loaded still must not be counted as examining
            work = federation.workers.io(
                examine, self._runner.id, number, inquiry, part, federation.store, federation.memory
            )
            examining = asyncio.ensure_future(work)
            await asyncio.wait((examining,), timeout=part.examination_seconds)
            if not examining.done():
                late = f"{part.point} {part.kind!r}: nothing was found in {part.examination_seconds:g} s"
                self._runner.post(ev.ExaminationFailed(at=self._now(), inquiry=number, reason=late))
            found = await examining  # a thread cannot be stopped, and what it stores must be dropped
        except ANYTHING as error:
            log.exception("job %s: %s %r could not examine updates", self._runner.id, part.point, part.kind)
            self._runner.post(ev.ExaminationFailed(at=self._now(), inquiry=number, reason=blame(error)))
            return
        finally:
            if examining:
                examining.cancel()
        try:
            await self._runner.post(
                ev.Examined(at=self._now(), inquiry=number, facts=found.facts, kept=found.digests)
            )
        except Stale:
            await self._drop(found.keys)

    def _set_alarm(self, alarm: str, at: float) -> None:
        """Set an alarm, in the place of one of the same name: many are set anew long before they would ring."""
        if alarm in self._alarms:
            self._alarms[alarm].cancel()
        self._alarms[alarm] = asyncio.create_task(self._ring(alarm, at))

    async def _ring(self, alarm: str, at: float) -> None:
        await self._federation.clock.sleep_until(at)
        del self._alarms[alarm]  # it is this one: another of the name would have cancelled it
        self._runner.post(ev.AlarmRang(at=self._now(), alarm=alarm))

    async def _drop(self, keys: tuple[ModelKey, ...]) -> None:
        def delete() -> None:
            for key in keys:
                self._federation.store.delete(key)  # harmless if it is repeated because the store was away

        try:
            await self._federation.workers.io(delete)
        except Broken as error:  # the job does not need them any more, and a restart drops what nobody needs
            log.warning("job %s: models could not be removed: %s", self._runner.id, error)
