"""The state machine of one job.

gathering ──► surveying ──► initialising ──► (probing ──► training) ⟲ rounds ──► closing ──► ended
    ▲                                                        │
    └────────────────── too few sites left ◄─────────────────┘

Cancellation and failure lead from any phase to `ended`.

The engine's modules, each on top of those above it:

    state, subjects, orders     what a job remembers, what is evaluated, what worker threads compute
    index/      indices over the state: connected sites, open tasks, retention of models
    job         the state with its rule, and the basic steps that every phase uses
    versions    updates and versions, and the models that are kept because of them
    accounts/   coverage and details of evaluations, participation of sites, their apps, what evaluators lack
    merging/
        examinations        what parts of the rule find in updates before a merge is weighed
        weights             what contributions are worth
        account             what a version is made of, for its record
        merges              from contributions to the next version
    handlers/   what an event leads to
        survey, probes      what sites report about their data, and about the model before a round
        evaluation          evaluation of community models
        evaluated_updates   evaluation of updates by other sites before they are weighed
        hops                what happens within a round of travelling models
        endings             how a job ends
        rounds              carries out what the pacer wants
        reports             settles every evaluation
        first_model         version 0
        gathering           waiting for sites
        sites               sites that join and leave
        results, order_results      what sites and worker threads bring back
    chronicle   what happened, told for people
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
from hansa.controller.engine import chronicle, snapshots, versions
from hansa.controller.engine import events as ev
from hansa.controller.engine.accounts import apps, personal
from hansa.controller.engine.effects import Effect, SendTask, SetAlarm
from hansa.controller.engine.handlers import (
    endings,
    evaluated_updates,
    evaluation,
    first_model,
    gathering,
    order_results,
    probes,
    results,
    sites,
)
from hansa.controller.engine.handlers.rounds import GATHER, act, pulses
from hansa.controller.engine.index.changes import Changes
from hansa.controller.engine.job import Job
from hansa.controller.engine.merging import account
from hansa.controller.engine.state import JobState
from hansa.controller.engine.subjects import OfVersion
from hansa.controller.plugin.composition import Composition
from hansa.controller.values.history import Records
from hansa.controller.values.snapshots import Snapshot

TIME = "time"  # the alarm that ends training
EARLY = 0.01  # an alarm may ring this many seconds early


class Machine:
    """Applies events to a job's state and returns effects. A stale event raises Stale and changes nothing."""

    def __init__(self, job: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.job = job
        self.spec = spec
        self.rule = rule
        self._job = Job(job, spec, rule, submitted)
        self._saved = 0  # the last event that is in a snapshot

    @property
    def state(self) -> JobState:
        """What the job remembers."""
        return self._job.state

    @property
    def memories(self) -> Mapping[str, BaseModel]:
        """What its plugins remember, by point."""
        return self._job.memories

    @property
    def phase(self) -> str:
        """The rule's name for the current round, if rounds differ."""
        if self.state.phase != "training":
            return ""
        return account.phase(self._job, (), self._job.view(self.state.submitted))

    @property
    def issued(self) -> Receipt | None:
        """The receipt that the most recent event brought, if any."""
        return self._job.issued

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self._job.ended

    def start(self) -> list[Effect]:
        """Return the first effects of a new job; `resume` is the counterpart after a replay."""
        alarms = {GATHER: self.state.submitted + self.spec.sites.wait}
        if self.spec.stop.seconds:
            alarms[TIME] = self.state.submitted + self.spec.stop.seconds
        self.state.alarms = alarms
        if self.spec.reference:
            versions.keep_reference(self._job)
        chronicle.tell_submission(self._job)
        return self.resume()

    def resume(self) -> list[Effect]:
        """Return the effects that are still pending.

        They may have been carried out already; doing so twice is harmless.
        """
        if self.ended:
            return []
        effects: list[Effect] = [SetAlarm(alarm, at) for alarm, at in sorted(self.state.alarms.items())]
        effects += [SendTask(task) for task in self.state.tasks.values()]
        return effects + [self._job.start_order(number) for number in self.state.orders]

    def keep_history(self, history: Records) -> None:
        """Keep the versions of a new job in a history of the caller's, which need not be in memory."""
        self.state.history = history

    def snapshot(self, history: bool = True) -> Snapshot:
        """Return the job's memory, with only the part of the history that is newer than the last snapshot.

        Without `history`, its keeper saves it.
        """
        self._saved = self.state.sequence
        return snapshots.take(self._job, history)

    def restore(self, snapshot: Snapshot, history: Records | None = None) -> None:
        """Restore the job's memory from a snapshot that has all chapters, or from one without any."""
        snapshots.restore(self._job, snapshot, history)
        self._saved = self.state.sequence

    @property
    def unsaved(self) -> int:
        """How many events have been handled since the last snapshot."""
        return self.state.sequence - self._saved

    @property
    def changes(self) -> Changes:
        """Which versions have changed since somebody looked."""
        return self._job.changes

    def is_final(self, record: Version) -> bool:
        """Whether nothing in a version's record will change any more."""
        if self.ended:
            return True
        if record.version == self.state.version or self.awaits(record):
            return False
        return not self._job.open_tasks.awaits(OfVersion(record.version))

    def tasks_of(self, site: SiteName) -> Sequence[Task]:
        """Return the open tasks of a site."""
        return self._job.open_tasks.of(site)

    def pulse_of(self, site: SiteName) -> int | None:
        """Return how many steps are committed, if a site in training needs to know."""
        return next((each.steps for each in pulses(self._job) if each.site == site), None)

    def awaits(self, record: Version) -> bool:
        """Whether the job waits for a report on a version."""
        return evaluation.is_awaited(self._job, record)

    def metrics(self, record: Version) -> Mapping[str, float | None]:
        """Return a version's metrics over the reports that have arrived."""
        return evaluation.metrics(self._job, record)

    def metrics_of_test_sites(self, record: Version) -> Mapping[str, float | None]:
        """Return a version's metrics over the reports of test sites that have arrived."""
        return evaluation.metrics_of_test_sites(self._job, record)

    def stated(self, role: str, site: SiteName) -> Stated:
        """Return the app as a daemon of a site has loaded it."""
        return self.state.apps.get(role, {}).get(site, Stated())

    @property
    def warnings(self) -> list[str]:
        """What operators should know about the sites' apps and data, and about the first model."""
        return [*apps.warnings(self._job), *personal.warnings(self._job), *self.state.remarks]

    def moments(self, version: int) -> dict[str, ModelKey]:
        """Return the moments that the server update carried on from a version, if they are still kept."""
        return versions.moments_of(self._job, version)

    def outdated_indices(self) -> list[str]:
        """Return the indices that do not match the state; there are none unless a change bypassed them."""
        rebuilt = Job(self.job, self.spec, self.rule, self.state.submitted)
        rebuilt.remember(self.state)
        indices = ("eligible", "evaluators", "scorers", "open_tasks", "retention")
        return [name for name in indices if getattr(self._job, name) != getattr(rebuilt, name)]

    def handle(self, event: ev.Event) -> list[Effect]:
        """Apply one event and return the effects."""
        if self.ended:
            raise Stale(f"job {self.job} has ended")
        self._job.issued = None
        before = chronicle.before(self._job, event)
        effects = self._dispatch(self._job, event)
        effects += gathering.watch_for_absence(self._job, event.at)
        self.state.sequence += 1
        self.state.latest = event.at
        chronicle.tell(self._job, before, event)
        return effects

    def abandon(self, reason: str, now: float) -> list[Effect]:
        """End the job as failed without an event: for when events can no longer be stored."""
        return [] if self.ended else endings.end(self._job, "failed", reason, now)

    def _dispatch(self, job: Job, event: ev.Event) -> list[Effect]:
        match event:
            case ev.SiteJoined():
                return sites.join(job, event)
            case ev.SiteLeft():
                return sites.leave(job, event)
            case ev.SiteUnfit():
                return sites.exclude(job, event)
            case ev.ModelGiven():
                key = community_key(job.id, 0)
                if not event.averaged:
                    job.state.remarks.append(first_model.NOTHING_AVERAGED)
                effects = first_model.enter(job, key, event.digest, event.outline, event.at)
                return effects if job.ended else [*effects, *gathering.proceed(job, event.at)]
            case ev.ModelDescribed():
                return results.take_description(job, event)
            case ev.UpdateArrived():
                return results.take_update(job, event)
            case ev.UpdateQuarantined():
                task = job.open_task(event.task, event.site)
                return results.lose(job, task, f"update quarantined: {event.reason}", event.at)
            case ev.TaskFailed():
                return results.take_failure(job, event)
            case ev.Reported():
                return results.take_report(job, event)
            case ev.Surveyed():
                return results.take_profile(job, event)
            case ev.Probed():
                return results.take_probe(job, event)
            case ev.OrderDone():
                return order_results.take(job, event)
            case ev.OrderFailed():
                return order_results.take_failure(job, event)
            case ev.AlarmRang():
                return self._ring(job, event)
            case ev.CancelAsked():
                operator = event.operator or "the operator"
                return endings.end(job, "cancelled", f"cancelled by {operator}", event.at)
            case ev.EngineFailed():
                return endings.end(job, "failed", event.reason, event.at)
        assert_never(event)

    def _ring(self, job: Job, event: ev.AlarmRang) -> list[Effect]:
        if event.at < job.state.alarms.get(event.alarm, float("inf")) - EARLY:
            raise Stale(f"alarm {event.alarm} is off, or was set again for a later time")
        del job.state.alarms[event.alarm]
        if event.alarm == GATHER:
            return endings.end(job, "failed", gathering.too_few_sites(job), event.at)
        if event.alarm == first_model.ALARM:
            return first_model.ask_one_more(job, event.at)
        if event.alarm == TIME:
            return endings.close(job, f"time limit of {job.spec.stop.seconds:g} s reached", event.at)
        if event.alarm == evaluation.ALARM:
            record = evaluation.time_out(job)
            if job.state.phase != "closing":
                return endings.consider(job, record, event.at)
            reason = f"{job.state.reason} (not all evaluators reported in time)"
            return endings.end(job, "completed", reason, event.at)
        if event.alarm == probes.ALARM:
            return results.stop_waiting_for_probes(job, event.at)
        if event.alarm.startswith(evaluated_updates.ALARM):
            return evaluated_updates.time_out(job, event.alarm, event.at)
        with calling(job.rule.pace) as pacer:
            actions = pacer.on_alarm(job.memory(pacer), event.alarm, job.draw, job.view(event.at))
        return act(job, actions, event.at)
