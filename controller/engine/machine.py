"""The state machine of one job.

gathering ──► initialising ──► training ⟲ rounds ──► closing ──► ended
    ▲                             │
    └──── too few sites left ◄────┘        (cancel and failure lead from anywhere to ended)
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from hansa.common.errors import Stale
from hansa.common.ids import JobId, ModelKey, SiteName, TaskId, community_key, task_id, update_key
from hansa.common.job import JobSpec
from hansa.common.tasks import Evaluate, Init, Receipt, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import (
    Change,
    DropModels,
    Effect,
    JobEnded,
    Member,
    MergePlan,
    SendTask,
    SetAlarm,
    StartMerge,
    WithdrawTask,
)
from hansa.controller.engine.parts import (
    Action,
    Ask,
    Composition,
    Contribution,
    MergeNow,
    NextRound,
    Stop,
    View,
    Wake,
    Withdraw,
)
from hansa.controller.engine.state import JobState, PendingMerge, Status, VersionRecord

GATHER, TIME, FINAL_EVALUATION = "gather", "time", "evaluation"
EARLY = 0.01  # seconds by which an alarm may ring too soon
EVALUATIONS_UNDER_WAY = 2  # per evaluator; a slow one skips versions instead of falling behind for ever


class Machine:
    """Applies events to a job's state and says what must be done. Stale events raise Stale and change nothing."""

    def __init__(self, job: JobId, spec: JobSpec, rule: Composition, submitted: float) -> None:
        self.job = job
        self.spec = spec
        self.rule = rule
        self.state = JobState(submitted=submitted)
        self.pacing = rule.pace.begin()
        self.issued: Receipt | None = None  # the receipt of the event that was handled last

    @property
    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        return self.state.phase == "ended"

    def start(self) -> list[Effect]:
        """Return what to do first; `resume` is its counterpart after a replay."""
        alarms = {GATHER: self.state.submitted + self.spec.sites.wait}
        if self.spec.stop.seconds:
            alarms[TIME] = self.state.submitted + self.spec.stop.seconds
        self.state.alarms = alarms
        return self.resume()

    def resume(self) -> list[Effect]:
        """Return what is under way: effects that may or may not have been carried out. Doing them twice is harmless."""
        if self.ended:
            return []
        effects: list[Effect] = [SetAlarm(alarm, at) for alarm, at in sorted(self.state.alarms.items())]
        effects += [SendTask(task) for task in self.state.tasks.values()]
        if self.state.plan:
            effects.append(StartMerge(self.state.plan))
        return effects

    def snapshot(self) -> str:
        """Return the whole state as JSON."""
        return json.dumps({"state": self.state.model_dump_json(), "pacing": self.pacing.model_dump_json()})

    def restore(self, snapshot: str) -> None:
        """Take the state of a snapshot."""
        held = json.loads(snapshot)
        self.state = JobState.model_validate_json(held["state"])
        self.pacing = type(self.pacing).model_validate_json(held["pacing"])

    def handle(self, event: ev.Event) -> list[Effect]:
        """Apply one event and return what must now be done."""
        if self.ended:
            raise Stale(f"job {self.job} has ended")
        self.issued = None
        effects = self._dispatch(event)
        effects += self._mind_absence(event.at)
        self.state.sequence += 1
        return effects

    def abandon(self, reason: str, now: float) -> list[Effect]:
        """End as failed without an event: for when events can no longer be kept."""
        return [] if self.ended else self._end("failed", reason, now)

    def _mind_absence(self, now: float) -> list[Effect]:
        """While everybody we wait for is away, an alarm runs; it is off as soon as somebody is back."""
        if self.state.phase not in ("initialising", "training"):
            return []
        if not self._stalled():
            self.state.alarms.pop(GATHER, None)
        elif GATHER not in self.state.alarms:
            return [self._wait_for_sites(now)]
        return []

    def _issue_receipt(self, **fields: Any) -> Receipt:
        """Add a receipt to the job's chain; the shell keeps it beside the event."""
        receipt = Receipt(job=self.job, sequence=self.state.sequence + 1, previous=self.state.chain, **fields).sealed()
        self.state.chain = receipt.hash
        self.issued = receipt
        return receipt

    def _dispatch(self, event: ev.Event) -> list[Effect]:
        match event:
            case ev.SiteJoined():
                return self._joined(event)
            case ev.SiteLeft():
                return self._left(event)
            case ev.SiteUnfit():
                if self.state.status != "waiting":
                    raise Stale(f"site {event.site} came too late to be missed")
                return self._end("failed", f"site {event.site} ({event.role}): {event.reason}", event.at)
            case ev.ModelGiven():
                self._first_version(community_key(self.job, 0), event.digest, event.at)
                return self._gathered(event.at)
            case ev.UpdateArrived():
                return self._update(event)
            case ev.UpdateQuarantined():
                return self._lost(self._open(event.task, event.site), f"update quarantined: {event.reason}", event.at)
            case ev.TaskFailed():
                task = self._open(event.task, event.site)
                if event.final:
                    return self._end("failed", f"site {event.site}: {event.reason}", event.at)
                return self._lost(task, event.reason, event.at)
            case ev.Reported():
                return self._reported(event)
            case ev.Merged():
                return self._merged(event)
            case ev.MergeFailed():
                if self.state.plan is None or self.state.plan.version != event.version:
                    raise Stale(f"version {event.version} is not being merged")
                return self._end("failed", f"merging version {event.version}: {event.reason}", event.at)
            case ev.AlarmRang():
                return self._alarm(event)
            case ev.CancelAsked():
                return self._end("cancelled", f"cancelled by {event.operator or 'the operator'}", event.at)
            case ev.EngineFailed():
                return self._end("failed", event.reason, event.at)
        assert_never(event)

    # Sites come and go.

    def _joined(self, event: ev.SiteJoined) -> list[Effect]:
        if event.role == "evaluator":
            if event.site in self.state.evaluators:
                raise Stale(f"evaluator {event.site} is known")
            self.state.evaluators.add(event.site)
            return []
        if self.state.learners.get(event.site) == event.examples:
            raise Stale(f"learner {event.site} is known")
        self.state.learners[event.site] = event.examples
        if self.state.phase == "initialising" and not self._working():
            return self._send_init(event.at)
        if self.state.phase == "training":
            return self._act(self.rule.pace.on_joined(self.pacing, event.site, self._view(event.at)), event.at)
        return self._gathered(event.at)

    def _left(self, event: ev.SiteLeft) -> list[Effect]:
        effects: list[Effect]
        if event.role == "evaluator":
            if event.site not in self.state.evaluators:
                raise Stale(f"evaluator {event.site} is not here")
            self.state.evaluators.discard(event.site)
            gone = [task for task in self.state.tasks.values() if _is_evaluation(task) and task.site == event.site]
            effects = []
            for task in gone:
                effects += self._evaluated(task, event.at, "the site left")
            return effects
        if self.state.learners.pop(event.site, None) is None:
            raise Stale(f"learner {event.site} is not here")
        effects = []
        if self.state.phase == "initialising":
            effects = self._initialise_elsewhere(event.site, event.at)
        elif self.state.phase == "training":
            effects = self._act(self.rule.pace.on_left(self.pacing, event.site, self._view(event.at)), event.at)
            if getattr(self.rule.merge, "drop_on_leave", False) and event.site in self.state.members:
                effects += self._queue_merge(PendingMerge(forgotten=event.site), event.at)
        return effects

    def _working(self) -> list[Task]:
        """Return the tasks that lead to a model."""
        return [task for task in self.state.tasks.values() if not _is_evaluation(task)]

    def _stalled(self) -> bool:
        """Whether everybody we wait for is away."""
        if self.state.phase not in ("initialising", "training") or self.state.plan is not None:
            return False
        return not any(task.site in self.state.learners for task in self._working())

    def _wait_for_sites(self, now: float) -> SetAlarm:
        self.state.alarms[GATHER] = now + self.spec.sites.wait
        return SetAlarm(GATHER, self.state.alarms[GATHER])

    def _gathered(self, now: float) -> list[Effect]:
        """Go on from gathering once enough sites are here."""
        if self.state.phase != "gathering" or len(self._eligible()) < self.spec.sites.min:
            return []
        self.state.status = "running"
        self.state.reason = ""
        self.state.alarms.pop(GATHER, None)
        if self.state.version < 0:
            self.state.phase = "initialising"
            return self._send_init(now)
        return self._next_round(now)

    def _eligible(self) -> list[SiteName]:
        return sorted(site for site, examples in self.state.learners.items() if examples > 0)

    # Version 0.

    def _send_init(self, now: float) -> list[Effect]:
        candidates = [site for site in self._eligible() if site not in self.state.init_tried]
        if not candidates:
            if self._eligible():
                return self._end("failed", "no site could build the first model", now)
            return []  # all are away; the next to join is asked
        return [self._issue(candidates[0], 0, Init())]

    def _initialise_elsewhere(self, gone: SiteName, now: float) -> list[Effect]:
        under_way = [task for task in self.state.tasks.values() if isinstance(task.work, Init) and task.site == gone]
        if not under_way:
            return []
        del self.state.tasks[under_way[0].id]
        return self._send_init(now)

    def _first_version(self, key: ModelKey, digest: str, at: float) -> None:
        self.state.version = 0
        self.state.current = key
        self.state.models.add(key)
        self.state.history.append(VersionRecord(version=0, round=0, at=at, digest=digest))

    # Rounds.

    def _next_round(self, now: float) -> list[Effect]:
        if len(self._eligible()) < self.spec.sites.min:
            self.state.phase = "gathering"
            self.state.reason = f"waiting for {self.spec.sites.min} sites"
            return [self._wait_for_sites(now)]
        self.state.phase = "training"
        self.state.round += 1
        return self._act(self.rule.pace.on_start(self.pacing, self.rule.sample, self._view(now)), now)

    def _update(self, event: ev.UpdateArrived) -> list[Effect]:
        task = self._open(event.task, event.site)
        key = update_key(task.id)
        effects: list[Effect] = []
        if isinstance(task.work, Init):
            self._first_version(key, event.digest, event.at)
            self.state.phase = "gathering"
            del self.state.tasks[task.id]
            effects = self._gathered(event.at) or self._next_round(event.at)
        else:
            contribution = Contribution(task=task, model=key, digest=event.digest, facts=event.facts)
            actions = self.rule.pace.on_result(self.pacing, contribution, self._view(event.at))
            del self.state.tasks[task.id]
            self.state.models.add(key)
            self.state.fresh.add(key)
            effects = self._act(actions, event.at)
        receipt = self._issue_receipt(task=task.id, site=task.site, digest=event.digest)
        self.state.receipts[task.site] = receipt
        return effects

    def _lost(self, task: Task, reason: str, now: float) -> list[Effect]:
        if isinstance(task.work, Evaluate):
            return self._evaluated(task, now, reason)
        del self.state.tasks[task.id]
        match task.work:
            case Init():
                self.state.init_tried.add(task.site)
                remaining = set(self._eligible()) - self.state.init_tried
                if not remaining:
                    return self._end("failed", f"site {task.site} could not build the first model: {reason}", now)
                return self._send_init(now)
            case Train():
                return self._act(self.rule.pace.on_lost(self.pacing, task, reason, self._view(now)), now)

    # Merges: one at a time, in the order in which they were decided on.

    def _queue_merge(self, pending: PendingMerge, now: float) -> list[Effect]:
        self.state.queue.append(pending)
        return self._start_merge(now) if self.state.plan is None else []

    def _start_merge(self, now: float) -> list[Effect]:
        assert self.state.current is not None
        self.state.plan = MergePlan(
            version=self.state.version + 1,
            current=self.state.current,
            change=self._change(self.state.queue[0], now),
            kept=self.rule.merge.kept,
        )
        return [StartMerge(self.state.plan)]

    def _change(self, pending: PendingMerge, now: float) -> Change:
        """Weigh the contributions and say what they put in the place of what."""
        contributions = pending.contributions
        weights = self.rule.weigh.weigh(contributions, self._view(now)) if contributions else np.zeros(0)
        if weights.shape != (len(contributions),) or not np.isfinite(weights).all() or (weights < 0).any():
            raise ValueError(f"the weigher {self.rule.weigh.kind!r} returned impossible weights {weights.tolist()}")
        added = tuple(_member(c, float(weight)) for c, weight in zip(contributions, weights, strict=True))
        if not self.rule.merge.remembers:
            return Change(added, (), added)
        members, removed = dict(self.state.members), []
        if pending.forgotten is not None:
            removed += members.pop(pending.forgotten, [])
        for member in added:
            kept, replaced = _overlay(members.get(member.site, []), member)
            members[member.site] = [*kept, member]
            removed += replaced
        return Change(added, tuple(removed), tuple(m for site in sorted(members) for m in members[site]))

    def _merged(self, event: ev.Merged) -> list[Effect]:
        plan = self.state.plan
        if plan is None or plan.version != event.version:
            raise Stale(f"version {event.version} is not being merged")
        pending = self.state.queue.pop(0)
        self._enter_version(plan, pending, event)
        weights = {member.task: member.weight for member in plan.change.added}
        self._issue_receipt(version=event.version, contributions=weights, digest=event.digest)
        actions: list[Action] = []
        if pending.forgotten is None:
            sites = [c.site for c in pending.contributions]
            actions = self.rule.pace.on_merged(self.pacing, sites, self._view(event.at))
        stopping = any(isinstance(action, Stop) for action in actions)
        effects = self._evaluate() if event.version % self.spec.evaluate.every == 0 and not stopping else []
        effects += self._act(actions, event.at)
        if self.state.queue and self.state.phase == "training":
            effects += self._start_merge(event.at)
        return effects + self._drop_unneeded()

    def _enter_version(self, plan: MergePlan, pending: PendingMerge, event: ev.Merged) -> None:
        members: dict[SiteName, list[Member]] = {}
        for member in plan.change.members:
            members.setdefault(member.site, []).append(member)
        record = VersionRecord(
            version=event.version,
            round=self.state.round if "barrier" in self.rule.pace.provides else event.version,
            at=event.at,
            digest=event.digest,
            contributions={member.site: member.weight for member in plan.change.added},
            staleness={c.site: self._staleness(c) for c in pending.contributions},
            lost=pending.lost,
            bytes_up=event.bytes_up,
            bytes_down=event.bytes_down,
        )
        self.state.history.append(record)
        self.state.plan = None
        self.state.version = event.version
        self.state.current = community_key(self.job, event.version)
        self.state.models.add(self.state.current)
        self.state.members = members
        self.state.fresh -= {c.model for c in pending.contributions}
        self.state.steps += sum(c.facts.steps for c in pending.contributions)

    def _staleness(self, c: Contribution) -> tuple[int, int]:
        """Return how far the community went on while the site trained: versions, and steps with its own."""
        assert isinstance(c.task.work, Train)
        return self.state.version - c.task.work.version, self.state.steps - c.task.work.committed + c.facts.steps

    # Evaluation never blocks training; only the last one is waited for.

    def _evaluate(self, final: bool = False) -> list[Effect]:
        assert self.state.current is not None
        work = Evaluate(model=self.state.current, version=self.state.version)
        effects: list[Effect] = []
        for site in sorted(self.state.evaluators):
            under_way = [t for t in self.state.tasks.values() if _is_evaluation(t) and t.site == site]
            if final or len(under_way) < EVALUATIONS_UNDER_WAY:
                effects.append(self._issue(site, self.state.round, work))
        return effects

    def _reported(self, event: ev.Reported) -> list[Effect]:
        task = self._open(event.task, event.site)
        if not isinstance(task.work, Evaluate):
            raise Stale(f"task {task.id} is no evaluation")
        self._record(task.work.version).reports[event.site] = event.evaluation
        return self._evaluated(task, event.at)

    def _record(self, version: int) -> VersionRecord:
        return next(record for record in self.state.history if record.version == version)

    def _evaluated(self, task: Task, now: float, trouble: str = "") -> list[Effect]:
        """An evaluation has ended, one way or another: perhaps it was the last of its version, or of the job."""
        assert isinstance(task.work, Evaluate)
        del self.state.tasks[task.id]
        record = self._record(task.work.version)
        if trouble:
            record.unevaluated[task.site] = trouble
        if not self._evaluating(record.version):
            record.close()
        if self.state.phase == "closing" and not self._evaluating():
            return self._end("completed", self.state.reason, now)
        version, target = task.work.version, self.spec.stop.target
        if target and self.state.phase in ("training", "gathering") and not self._evaluating(version):
            value = record.metrics().get(target.metric)
            if value is not None and (value >= target.value if target.metric == "accuracy" else value <= target.value):
                reached = f"target reached: {target.metric} {value:.4f} at version {version}"
                return self._close(reached, now) + self._drop_unneeded()
        return self._drop_unneeded()

    def _evaluating(self, version: int | None = None) -> list[Task]:
        found = [task for task in self.state.tasks.values() if isinstance(task.work, Evaluate)]
        return [task for task in found if version in (None, getattr(task.work, "version", None))]

    # Endings.

    def _close(self, reason: str, now: float) -> list[Effect]:
        """No more training: wait for the last evaluation, then the job is complete."""
        if self.state.version < 0:
            return self._end("failed", f"{reason} before there was a model", now)
        if self.state.version > 0 and not any(record.contributions for record in self.state.history):
            return self._end("failed", f"{reason}, but no site delivered an update in time", now)
        self.state.phase = "closing"
        self.state.reason = reason
        self.state.plan = None
        self.state.queue = []
        unfinished = self._working()
        effects: list[Effect] = [WithdrawTask(task, reason) for task in unfinished]
        for task in unfinished:
            del self.state.tasks[task.id]
        newest = self.state.history[-1] if self.state.history else None
        if newest and newest.version > 0 and not newest.examples and not self._evaluating(newest.version):
            effects += self._evaluate(final=True)
        if not self._evaluating():
            return [*effects, *self._end("completed", reason, now)]
        at = now + self.spec.evaluate.timeout
        self.state.alarms = {FINAL_EVALUATION: at}
        return [*effects, SetAlarm(FINAL_EVALUATION, at)]

    def _end(self, status: Status, reason: str, now: float) -> list[Effect]:
        effects: list[Effect] = [WithdrawTask(task, reason) for task in self.state.tasks.values()]
        self.state.tasks = {}
        self.state.alarms = {}
        self.state.plan = None
        self.state.queue = []
        self.state.status, self.state.reason = status, reason
        self.state.phase, self.state.ended = "ended", now
        return [*effects, *self._drop_unneeded(), JobEnded(status, reason)]

    def _alarm(self, event: ev.AlarmRang) -> list[Effect]:
        if event.at < self.state.alarms.get(event.alarm, float("inf")) - EARLY:
            raise Stale(f"alarm {event.alarm} is off, or was set anew")
        del self.state.alarms[event.alarm]
        match event.alarm:
            case "gather":
                return self._end("failed", self._too_few(), event.at)
            case "time":
                return self._close(f"time limit of {self.spec.stop.seconds:g} s reached", event.at)
            case "evaluation":
                return self._end("completed", f"{self.state.reason} (not all evaluators answered)", event.at)
        actions = self.rule.pace.on_alarm(self.pacing, event.alarm, self.rule.sample, self._view(event.at))
        return self._act(actions, event.at)

    def _too_few(self) -> str:
        here = self._eligible()
        if self.state.phase != "gathering":
            awaited = sorted({task.site for task in self._working()})
            away = f": {', '.join(awaited)}" if awaited else ""
            limit = f"{self.spec.sites.wait:g} s"
            return f"the sites that round {self.state.round} waits for did not come back in {limit}{away}"
        names = f" ({', '.join(here)})" if here else ""
        empty = sorted(site for site, examples in self.state.learners.items() if not examples)
        without = f"; without examples: {', '.join(empty)}" if empty else ""
        least, wait = self.spec.sites.min, self.spec.sites.wait
        return f"{len(here)} of the {least} sites needed attended after {wait:g} s{names}{without}"

    # From a plugin's actions to effects.

    def _act(self, actions: Iterable[Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case Ask():
                    effects.append(self._ask(action))
                case NextRound():
                    effects += self._next_round(now)
                case Withdraw(task, reason):
                    withdrawn = self.state.tasks.pop(task, None)
                    if withdrawn:
                        effects.append(WithdrawTask(withdrawn, reason))
                case MergeNow(contributions, lost):
                    effects += self._queue_merge(PendingMerge(contributions=contributions, lost=dict(lost)), now)
                case Wake(seconds, alarm):
                    self.state.alarms[alarm] = now + seconds
                    effects.append(SetAlarm(alarm, now + seconds))
                case Stop(reason, failed):
                    effects += self._end("failed", reason, now) if failed else self._close(reason, now)
                case _:
                    assert_never(action)
        return effects

    def _ask(self, ask: Ask) -> SendTask:
        assert self.state.current is not None
        work = Train(
            model=self.state.current,
            version=self.state.version,
            committed=self.state.steps,
            epochs=self.spec.train.epochs,
            steps=ask.steps,
            batch_size=self.spec.train.batch_size,
            optimizer=self.spec.train.optimizer,
        )
        sent = self._issue(ask.site, self.state.round if ask.cycle is None else ask.cycle, work)
        self.rule.pace.on_asked(self.pacing, sent.task)
        return sent

    def _issue(self, site: SiteName, round_: int, work: Init | Train | Evaluate) -> SendTask:
        self.state.task_count += 1
        task = Task(
            id=task_id(self.job, self.state.task_count),
            job=self.job,
            site=site,
            round=round_,
            app=self.spec.app,
            seed=self.spec.seed,
            validation=self.spec.validation,
            work=work,
        )
        self.state.tasks[task.id] = task
        return SendTask(task)

    def _open(self, task: TaskId, site: SiteName) -> Task:
        held = self.state.tasks.get(task)
        if held is None or held.site != site:
            raise Stale(f"task {task} is over")
        return held

    def _view(self, now: float) -> View:
        return View(
            sites=tuple(self._eligible()),
            busy=frozenset(task.site for task in self._working()),
            examples=dict(self.state.learners),
            version=self.state.version,
            round=self.state.round,
            steps=self.state.steps,
            seed=self.spec.seed,
            now=now,
        )

    def _drop_unneeded(self) -> list[Effect]:
        """Forget models that neither a task, a merge to come, nor the check of the last merge needs."""
        bases: set[Any] = {getattr(task.work, "model", None) for task in self.state.tasks.values()}
        fresh = set() if self.ended else self.state.fresh
        counted = {member.model for held in self.state.members.values() for member in held}
        needed = bases | fresh | counted | {self.state.current}
        unneeded = tuple(sorted(self.state.models - needed))
        self.state.models -= set(unneeded)
        return [DropModels(unneeded)] if unneeded else []


def _member(c: Contribution, weight: float) -> Member:
    tensors = frozenset(c.task.work.tensors) if isinstance(c.task.work, Train) and c.task.work.tensors else None
    return Member(site=c.site, task=c.task.id, model=c.model, weight=weight, tensors=tensors)


def _overlay(held: list[Member], new: Member) -> tuple[list[Member], list[Member]]:
    """Return what stays of a site's members and what is replaced, tensor by tensor, when a new one comes."""
    if new.tensors is None:
        return [], held
    kept, replaced = [], []
    for member in held:
        assert member.tensors is not None, "a site's updates are all whole or all partial"
        stays, goes = member.tensors - new.tensors, member.tensors & new.tensors
        if stays:
            kept.append(replace(member, tensors=stays))
        if goes:
            replaced.append(replace(member, tensors=goes))
    return kept, replaced


def _is_evaluation(task: Task) -> bool:
    return isinstance(task.work, Evaluate)
