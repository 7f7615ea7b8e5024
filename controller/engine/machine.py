"""The state machine of one job.

gathering ──► surveying ──► initialising ──► probing ──► training ⟲ rounds ──► closing ──► ended
    ▲                                                       │
    └────────────────── too few sites left ◄────────────────┘        (cancel and failure lead from anywhere to ended)

Its modules, each on top of those above it:

    state, subjects, orders     what a job remembers; what is evaluated; what worker threads compute
    index/      indices over the state: who is here, open tasks, which models the store must keep
    job         a job's state with its rule, and the small steps that every phase takes
    accounts/   coverage of evaluations, participation of sites, what sites state of their apps
    phases/
        survey, probes      what sites tell of their data, and of the first model
        evaluation          of community models
        examinations        what parts of the rule look at before a merge is weighed
        merges, hops        from updates to the next model; what happens within a round
        endings             how a job ends
        updates             evaluated by other sites before they are weighed
        rounds              what the pacer wants
        reports             where every evaluation is settled
        sites               who comes and goes; version 0
        results, order_results      what sites bring back, and what worker threads do
    snapshots   the memory as text
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

from pydantic import BaseModel

from hansa.common.job.spec import JobSpec
from hansa.common.plugins.calling import calling
from hansa.common.values.errors import Stale
from hansa.common.values.history import Version
from hansa.common.values.ids import JobId, ModelKey, SiteName, community_key
from hansa.common.values.receipts import Receipt
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Task
from hansa.controller.engine import events as ev
from hansa.controller.engine import snapshots
from hansa.controller.engine.accounts import apps
from hansa.controller.engine.effects import Effect, SendTask, SetAlarm
from hansa.controller.engine.job import Job
from hansa.controller.engine.phases import (
    endings,
    evaluation,
    merges,
    order_results,
    probes,
    results,
    sites,
    updates,
)
from hansa.controller.engine.phases.rounds import GATHER, act, pulse
from hansa.controller.engine.state import JobState
from hansa.controller.plugin.composition import Composition
from hansa.controller.values.snapshots import Snapshot

TIME = "time"  # the alarm that ends training
EARLY = 0.01  # seconds by which an alarm may ring too soon


class Machine:
    """Applies events to a job's state and says what must be done. Stale events raise Stale and change nothing."""

    def __init__(self, job: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.job = job
        self.spec = spec
        self.rule = rule
        self._job = Job(job, spec, rule, submitted)
        self._saved = 0  # the last event that a snapshot includes

    @property
    def state(self) -> JobState:
        """What the job remembers."""
        return self._job.state

    @property
    def memories(self) -> Mapping[str, BaseModel]:
        """What its plugins remember, by the points that they fill."""
        return self._job.memories

    @property
    def phase(self) -> str:
        """What the rule calls the round that is under way."""
        if self.state.phase != "training":
            return ""
        return merges.phase(self._job, (), self._job.view(self.state.submitted))

    @property
    def issued(self) -> Receipt | None:
        """The receipt of the event that was handled last."""
        return self._job.issued

    @property
    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        return self._job.ended

    def start(self) -> list[Effect]:
        """Return what to do first; `resume` is its counterpart after a replay."""
        alarms = {GATHER: self.state.submitted + self.spec.sites.wait}
        if self.spec.stop.seconds:
            alarms[TIME] = self.state.submitted + self.spec.stop.seconds
        self.state.alarms = alarms
        if self.spec.reference:
            self._job.keep_reference()
        return self.resume()

    def resume(self) -> list[Effect]:
        """Return what is under way: effects that may or may not have been carried out. Doing them twice is harmless."""
        if self.ended:
            return []
        effects: list[Effect] = [SetAlarm(alarm, at) for alarm, at in sorted(self.state.alarms.items())]
        effects += [SendTask(task) for task in self.state.tasks.values()]
        return effects + [self._job.start_order(number) for number in self.state.orders]

    def snapshot(self) -> Snapshot:
        """Return the job's memory; of its history only what is new since the last snapshot."""
        self._saved = self.state.sequence
        return snapshots.take(self._job)

    def restore(self, snapshot: Snapshot) -> None:
        """Take the memory of a snapshot that has all chapters."""
        snapshots.give_back(self._job, snapshot)
        self._saved = self.state.sequence

    @property
    def unsaved(self) -> int:
        """How many events have come since the last snapshot."""
        return self.state.sequence - self._saved

    def tasks_of(self, site: SiteName) -> Sequence[Task]:
        """Return the open tasks of a site."""
        return self._job.open_tasks.of(site)

    def pulse_of(self, site: SiteName) -> int | None:
        """Return the committed steps that a site which trains is to know of, if that matters to it."""
        return next((told.steps for told in pulse(self._job) if told.site == site), None)

    def awaits(self, record: Version) -> bool:
        """Whether somebody's report on a version is waited for."""
        return evaluation.awaited(self._job, record)

    def metrics(self, record: Version) -> Mapping[str, float | None]:
        """Return what the findings on a version say together, those that are here."""
        return evaluation.metrics(self._job, record)

    def stated(self, role: str, site: SiteName) -> Stated:
        """Return what a daemon of a site has stated of the app."""
        return self.state.apps.get(role, {}).get(site, Stated())

    @property
    def warnings(self) -> list[str]:
        """What people should know of the sites' apps."""
        return apps.warnings(self._job)

    def moments(self, version: int) -> dict[str, ModelKey]:
        """Return the moments that the server update carried on from a version, if they are still needed."""
        return self._job.moments(version)

    def handle(self, event: ev.Event) -> list[Effect]:
        """Apply one event and return what must now be done."""
        if self.ended:
            raise Stale(f"job {self.job} has ended")
        self._job.issued = None
        effects = self._dispatch(self._job, event)
        effects += sites.mind_absence(self._job, event.at)
        self.state.sequence += 1
        self.state.latest = event.at
        return effects

    def abandon(self, reason: str, now: float) -> list[Effect]:
        """End as failed without an event: for when events can no longer be kept."""
        return [] if self.ended else endings.end(self._job, "failed", reason, now)

    def _dispatch(self, job: Job, event: ev.Event) -> list[Effect]:
        match event:
            case ev.SiteJoined():
                return sites.joined(job, event)
            case ev.SiteLeft():
                return sites.left(job, event)
            case ev.SiteUnfit():
                return sites.unfit(job, event)
            case ev.ModelGiven():
                effects = sites.first_version(
                    job, community_key(job.id, 0), event.digest, event.outline, event.at
                )
                return effects if job.ended else [*effects, *sites.gathered(job, event.at)]
            case ev.ModelDescribed():
                return results.described(job, event)
            case ev.UpdateArrived():
                return results.updated(job, event)
            case ev.UpdateQuarantined():
                task = job.open_task(event.task, event.site)
                return results.lost(job, task, f"update quarantined: {event.reason}", event.at)
            case ev.TaskFailed():
                return results.failed(job, event)
            case ev.Reported():
                return results.reported(job, event)
            case ev.Surveyed():
                return results.surveyed(job, event)
            case ev.Probed():
                return results.probed(job, event)
            case ev.OrderDone():
                return order_results.done(job, event)
            case ev.OrderFailed():
                return order_results.failed(job, event)
            case ev.AlarmRang():
                return self._alarm(job, event)
            case ev.CancelAsked():
                return endings.end(
                    job, "cancelled", f"cancelled by {event.operator or 'the operator'}", event.at
                )
            case ev.EngineFailed():
                return endings.end(job, "failed", event.reason, event.at)
        assert_never(event)

    def _alarm(self, job: Job, event: ev.AlarmRang) -> list[Effect]:
        if event.at < job.state.alarms.get(event.alarm, float("inf")) - EARLY:
            raise Stale(f"alarm {event.alarm} is off, or was set anew")
        del job.state.alarms[event.alarm]
        if event.alarm == GATHER:
            return endings.end(job, "failed", sites.too_few(job), event.at)
        if event.alarm == sites.FIRST_MODEL:
            return sites.ask_one_more(job, event.at)
        if event.alarm == TIME:
            return endings.close(job, f"time limit of {job.spec.stop.seconds:g} s reached", event.at)
        if event.alarm == evaluation.ALARM:
            late = evaluation.time_out(job)
            if job.state.phase != "closing":
                return endings.consider(job, late, event.at)
            return endings.end(
                job, "completed", f"{job.state.reason} (not all evaluators answered)", event.at
            )
        if event.alarm == probes.ALARM:
            return results.probes_late(job, event.at)
        if event.alarm.startswith(updates.ALARM):
            return updates.time_out(job, event.alarm, event.at)
        with calling(job.rule.pace) as pacer:
            actions = pacer.on_alarm(job.memory(pacer), event.alarm, job.draw, job.view(event.at))
        return act(job, actions, event.at)
