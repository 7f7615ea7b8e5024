"""A simulated job: the engine of a deployment, with virtual sites, virtual time and no processes of its own.

What a task needs is fixed when it is issued, so a crew may do tasks long before their virtual time comes. The
driver takes the earliest entry of the agenda and waits for its outcome if it is not there yet.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from hansa.common.models.auxiliary import require_first
from hansa.common.models.frames import cut
from hansa.common.models.model import Manifest, check_manifest, require_fit
from hansa.common.plugins.check import ANYTHING
from hansa.common.values.errors import Broken, HansaError, PluginFailed, Rejected, Stale, reason
from hansa.common.values.ids import ModelKey, SiteName, TaskId, sent_key, update_key
from hansa.common.values.results import Evaluation, Failure, Profile
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merged
from hansa.controller.jobs.chores import Traffic
from hansa.controller.plugin.outline import outline_of
from hansa.controller.transfers.descriptions import require_same_model
from hansa.controller.transfers.wanted import Encoded, wanted_update
from hansa.controller.work.bench import Bench
from hansa.controller.work.decode import decode
from hansa.simulation.agenda import ABSENT, Agenda, Rank, nanoseconds, seconds
from hansa.simulation.crew.base import Assignment, Crew, Outcome, Update
from hansa.simulation.data import VirtualData
from hansa.simulation.memory import SiteMemory
from hansa.simulation.slab import Slot
from hansa.simulation.store import SharedStore
from hansa.simulation.timing import Timing
from hansa.simulation.traffic import Downloads

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Due:
    """The outcome of a task is due, or not before this time."""

    task: Task
    began: int  # when the site had its models
    site: int


@dataclass(frozen=True)
class Ring:
    """An alarm."""

    alarm: str
    at: float


Entry = Due | Ring | ev.Event


class Driver:
    """Runs one job to its end."""

    def __init__(
        self,
        machine: Machine,
        bench: Bench,
        store: SharedStore,
        crew: Crew,
        data: VirtualData,
        timing: Timing,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.machine, self.traffic = machine, Traffic()
        self.now = 0  # virtual time
        self._bench, self._store, self._crew, self._timing = bench, store, crew, timing
        self._changed = changed
        self.sites = data.names
        self._numbers = {name: number for number, name in enumerate(data.names)}
        self._agenda: Agenda[Entry] = Agenda()
        self._downloads = Downloads()
        self._outcomes: dict[TaskId, Outcome] = {}
        self.remarks: list[str] = []  # on how tasks are done
        self._memories: dict[int, SiteMemory] = {}
        self._manifests: dict[ModelKey, Manifest] = {}

    def join(self, site: SiteName, role: ev.Role, examples: int, app: Stated, at: int = 0) -> None:
        """Let a daemon of a site come at a time."""
        event = ev.SiteJoined(at=seconds(at), site=site, role=role, examples=examples, app=app)
        self._agenda.enter(at, Rank.JOIN, event, self._numbers[site], int(role == "learner"))

    def begin(self, first: ev.ModelGiven | None = None) -> None:
        """Start the job."""
        self._carry_out(self.machine.start())
        if first is not None:
            self._handle(first)

    def run(self) -> None:
        """Let time pass until the job has ended."""
        while not self.machine.ended:
            if not self._agenda:
                raise HansaError("the simulation stands still: no site works, and no alarm is set")
            (time, *_), entry = self._agenda.pop()
            self.now = time
            match entry:
                case Due():
                    self._settle(entry, time)
                case Ring():
                    if self.machine.state.alarms.get(entry.alarm) == entry.at:
                        self._handle(ev.AlarmRang(at=self._at, alarm=entry.alarm))
                case _:
                    self._handle(entry)

    @property
    def _at(self) -> float:
        return seconds(self.now)

    def cancel(self) -> None:
        """End the job as its operator would."""
        if not self.machine.ended:
            self._handle(ev.CancelAsked(at=self._at))

    # Events and effects.

    def _handle(self, event: ev.Event) -> bool:
        """Apply an event and carry out what follows; return whether the job took it."""
        try:
            effects = self.machine.handle(event)
        except Stale:
            return False
        except ANYTHING as error:
            log.exception("the engine failed on %s", event.kind)
            effects = self.machine.abandon(f"the rule failed: {reason(error)}", self._at)
        self._carry_out(effects)
        self._changed()
        return True

    def _carry_out(self, effects: list[ef.Effect]) -> None:
        issued: list[Assignment] = []
        for effect in effects:
            match effect:
                case ef.SendTask(task):
                    issued.append(self._issue(task))
                case ef.WithdrawTask(task):
                    self._crew.withdraw(task.id)
                    self._outcomes.pop(task.id, None)
                case ef.StartOrder():
                    self._order(effect)
                case ef.SetAlarm(alarm, at):
                    self._agenda.enter(max(self.now, nanoseconds(at)), Rank.ALARM, Ring(alarm, at))
                case ef.DropModels(keys):
                    for key in keys:
                        self._drop(key)
                case ef.JobEnded():
                    self._bench.forget()
                case ef.Pulse():
                    pass  # sites in training ask for what they need to know
                case _:
                    assert_never(effect)
        if issued:
            self._crew.submit(issued)

    def _drop(self, key: ModelKey) -> None:
        self._manifests.pop(key, None)
        try:
            self._store.delete(key)
        except Broken as error:
            log.warning("a model could not be removed: %s", error)

    def _order(self, start: ef.StartOrder) -> None:
        """Carry out an order at once; its result arrives after the time that it takes."""
        drafts = self._bench.drafts()
        at = self.now + self._timing.merge
        try:
            if prepare := self._bench.preparation(start.order):
                prepare()
            result = self._bench.carry_out(start, drafts).result
            if isinstance(result, Merged):
                up, down = self.traffic.take()
                result = result.model_copy(update={"bytes_up": up, "bytes_down": down})
            event: ev.Event = ev.OrderDone(at=seconds(at), order=start.number, result=result)
        except ANYTHING as error:
            log.exception("%s failed", self._bench.name(start.order))
            drafts.discard()
            event = ev.OrderFailed(at=seconds(at), order=start.number, reason=reason(error))
        self._agenda.enter(at, Rank.ORDER, event, ABSENT, start.number)

    # Tasks.

    def _issue(self, task: Task) -> Assignment:
        """Put a task on the agenda for the earliest time at which its outcome can be here."""
        site = self._numbers[task.site]
        began = self.now + self._download(site, task)
        self._agenda.enter(began + 1, _rank(task), Due(task, began, site), site, _number(task))
        return Assignment(task, site, self._memories.get(site))

    def _download(self, site: int, task: Task) -> int:
        """Let a site fetch the models of a task; return how long it takes."""
        work, role = task.work, _role(task)
        beside = [e.name for e in work.auxiliary if e.down and not e.reset] if isinstance(work, Train) else []
        size = self._downloads.fetch(site, role, [self._manifest(key) for key in task.models], beside)
        self.traffic.down += size
        return self._timing.download(size)

    def _manifest(self, key: ModelKey) -> Manifest:
        if key not in self._manifests:
            with self._store.open(key) as model:
                self._manifests[key] = model.manifest
        return self._manifests[key]

    def _settle(self, due: Due, time: int) -> None:
        """Take the outcome of a task if its time has come; otherwise wait for that time."""
        task = due.task
        if task.id not in self.machine.state.tasks:
            self._outcomes.pop(task.id, None)
            return
        outcome = self._outcomes.pop(task.id, None) or self._crew.outcome(task.id)
        self.remarks += [remark for remark in outcome.remarks if remark not in self.remarks]
        exact = self._completion(due, outcome)
        if exact > time:
            self._outcomes[task.id] = outcome
            rank = Rank.FAILURE if isinstance(outcome.result, Failure) else _rank(task)
            self._agenda.enter(exact, rank, due, due.site, _number(task))
            return
        self._take(due, outcome)

    def _completion(self, due: Due, outcome: Outcome) -> int:
        """Return when the outcome of a task arrives."""
        result, timing = outcome.result, self._timing
        match result:
            case Update():
                steps = result.facts.steps
                return due.began + timing.training(due.site, steps) + timing.upload(result.nbytes)
            case Evaluation():
                return due.began + timing.evaluation(due.site, result.n) + timing.upload(0)
            case Profile() | Failure():
                return due.began + timing.upload(0) + 1
        return due.began + timing.upload(0) + 1

    def _take(self, due: Due, outcome: Outcome) -> None:
        """Tell the job what came of a task."""
        task, result = due.task, outcome.result
        head = {"at": self._at, "task": task.id, "site": task.site}
        match result:
            case Update():
                if outcome.memory is not None:  # the job may refuse the update, but the site has trained
                    self._memories[due.site] = outcome.memory
                self._take_update(due, result)
            case Evaluation():
                self._handle(ev.Reported(**head, evaluation=result))
            case Profile():
                self._handle(ev.Surveyed(**head, profile=result))
            case Failure():
                self._handle(
                    ev.TaskFailed(**head, reason=result.reason, final=result.final, unfit=result.unfit)
                )
            case _:
                self._handle(ev.Probed(**head, result=result))

    def _take_update(self, due: Due, update: Update) -> None:
        """Check an update as a controller does, store it, and tell the job."""
        task, manifest = due.task, update.manifest
        self.traffic.up += update.nbytes
        try:
            if isinstance(task.work, Init) and self.machine.state.current is not None:
                self._describe(task, update)
                return
            encoded = self._require_fit(task, update)
            key = sent_key(task.id) if encoded else update_key(task.id)
            _publish(self._store, key, update)
            decoded = self._decode(task, encoded, key) if encoded else ""
        except Rejected as error:
            self._handle(ev.UpdateQuarantined(at=self._at, task=task.id, site=task.site, reason=str(error)))
            return
        except PluginFailed as error:
            self._handle(ev.EngineFailed(at=self._at, reason=str(error)))
            return
        is_first = isinstance(task.work, Init)
        trained = seconds(self._timing.training(due.site, update.facts.steps))
        facts = (
            update.facts
            if is_first
            else update.facts.model_copy(update={"anatomy": None, "seconds": trained})
        )
        outline = None
        if is_first and self.machine.rule.needs_outline:
            outline = outline_of(manifest.spec, facts.anatomy)
        event = ev.UpdateArrived(
            at=self._at,
            task=task.id,
            site=task.site,
            facts=facts,
            digest=manifest.digest.hex(),
            decoded=decoded,
            bytes_up=update.nbytes,
            tensors=len(manifest.digests),
            outline=outline,
            averaged=manifest.spec.is_averaged,
        )
        if not self._handle(event):
            self._store.delete(update_key(task.id))
        elif isinstance(task.work, Train):
            memory = self._memories.get(due.site)
            if memory is not None:
                self._memories[due.site] = memory.committed(task)

    def _describe(self, task: Task, update: Update) -> None:
        """Tell the job what a file with version 0 does not say."""
        assert self.machine.state.current is not None
        manifest = update.manifest
        require_same_model(manifest.spec, self._manifest(self.machine.state.current).spec)
        event = ev.ModelDescribed(
            at=self._at,
            task=task.id,
            site=task.site,
            digest=manifest.digest.hex(),
            outline=outline_of(manifest.spec, update.facts.anatomy),
            backbone=update.facts.backbone,
        )
        self._handle(event)

    def _require_fit(self, task: Task, update: Update) -> Encoded | None:
        """Refuse an update that its task does not ask for, or whose numbers are not finite."""
        manifest, encoded = update.manifest, None
        if isinstance(task.work, Train):
            wanted, encoded = wanted_update(task.work, self._manifest(task.models[0]).spec)
            if wanted != manifest.spec:
                check_manifest(manifest)
                require_fit(wanted, manifest.spec)
        else:
            require_first(manifest, [each.name for each in self.machine.rule.auxiliary])
        for info, peak in zip(manifest.spec.tensors, update.peaks, strict=True):
            if not np.isfinite(peak):
                raise Rejected(f"tensor {info.name} holds NaN or infinite values")
        return encoded

    def _decode(self, task: Task, encoded: Encoded, key: ModelKey) -> str:
        """Store what an encoded update stands for in place of what was sent; return its digest."""
        drafts = self._bench.drafts()
        try:
            manifest = decode(
                self._store, encoded.encoding, encoded.spec, key, task.models, update_key(task.id), drafts
            )
        finally:
            drafts.discard()
            self._store.delete(key)
        return manifest.digest.hex()


def _publish(store: SharedStore, key: ModelKey, update: Update) -> None:
    if isinstance(update.payload, Slot):
        store.adopt(key, update.manifest, update.peaks, update.payload)
        return
    draft = store.draft(key, update.manifest.spec)
    for index, frame in enumerate(cut(update.payload)):
        draft.write(index, frame)
    draft.publish(update.manifest, update.peaks)


def _role(task: Task) -> ev.Role:
    return "evaluator" if isinstance(task.work, Evaluate) else "learner"


def _rank(task: Task) -> Rank:
    return Rank.REPORT if isinstance(task.work, Evaluate | Survey | Probe) else Rank.UPDATE


def _number(task: Task) -> int:
    return int(task.id.rpartition("-")[2])
