"""Plays a job's engine by hand, and records every accepted event and its effects."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import pytest
from pydantic import JsonValue

from hansa.common.job.spec import JobSpec
from hansa.common.methods.importance import IMPORTANCE
from hansa.common.values.errors import Stale
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.results import Evaluation, Profile, UpdateFacts
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.controller.engine import events as ev
from hansa.controller.engine.effects import (
    DropModels,
    Effect,
    JobEnded,
    SendTask,
    StartOrder,
    WithdrawTask,
)
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import (
    Compare,
    Compared,
    Examine,
    Examined,
    ExamineHop,
    HopExamined,
    Merge,
    Merged,
    Result,
)
from hansa.controller.plugin.outline import Outline
from hansa.controller.rulebook.compose import compose
from hansa.controller.values.snapshots import Snapshot

JOB = JobId("j1")
NONE = 0  # no order has this number
Role = Literal["learner", "evaluator"]
Kind = TypeVar("Kind", Merge, Examine, ExamineHop, Compare)


def job_spec(**fields: Any) -> JobSpec:
    """Return a small job, of two sites by default."""
    return JobSpec.model_validate({"app": "app.py:app", "sites": {"min": 2}, **fields})


def machine_of(spec: JobSpec) -> Machine:
    """Return the machine of a job that is submitted at time 0."""
    return Machine(JOB, spec, compose(spec), 0.0)


class Play:
    """One job in progress."""

    def __init__(self, **fields: Any) -> None:
        self.spec = job_spec(**fields)
        self.machine = machine_of(self.spec)
        self.first = self.machine.start()
        self.now = 0.0
        self.accepted: list[ev.Event] = []
        self.effects: list[Effect] = []
        self.saved = Snapshot(0, "", {})  # as a journal keeps it: with all chapters
        self.outline: Outline | None = None  # of version 0, for rules that need it

    def do(self, event: ev.Event) -> list[Effect]:
        """Apply an event."""
        effects = self.machine.handle(event)
        self.accepted.append(event)
        self.effects += effects
        return effects

    def picture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return everything that the machine remembers."""
        memories = {point: memory.model_dump() for point, memory in self.machine.memories.items()}
        return self.machine.state.model_dump(), memories

    def save(self) -> None:
        """Save a snapshot as a journal does: new chapters replace old ones."""
        new = self.machine.snapshot()
        self.saved = replace(new, chapters={**self.saved.chapters, **new.chapters})

    def again(self, machine: Machine | None = None) -> Machine:
        """Return the job after a crash: restored from the last snapshot, if any, and the events after it."""
        restored = machine or machine_of(self.spec)
        restored.start()
        if self.saved.sequence:
            restored.restore(self.saved)
        for event in self.accepted[self.saved.sequence :]:
            restored.handle(ev.EVENT.validate_json(event.model_dump_json()))
        return restored

    # What can happen.

    def join(self, *sites: str, role: Role = "learner", examples: int = 10) -> list[Effect]:
        """Let sites join; return the effects of the last one."""
        effects: list[Effect] = []
        for site in sites:
            effects = self.do(ev.SiteJoined(at=self.now, site=SiteName(site), role=role, examples=examples))
        return effects

    def leave(self, site: str, role: Role = "learner") -> list[Effect]:
        """Let a daemon leave."""
        return self.do(ev.SiteLeft(at=self.now, site=SiteName(site), role=role))

    def update(
        self,
        task: Task,
        n_train: int = 10,
        site: str | None = None,
        loss: float = 0.5,
        steps: int = 3,
        own: Evaluation | None = None,
        importance: float | None = None,
        n_used: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> list[Effect]:
        """Let an update arrive, perhaps with its learner's evaluation on its `own` validation data."""
        facts = UpdateFacts(
            n_train=n_train,
            n_used=n_train if n_used is None else n_used,
            steps=steps,
            epochs=1,
            seconds=0.1,
            loss=loss,
            evaluation=own,
            metrics={**(metrics or {}), **({} if importance is None else {IMPORTANCE: importance})},
        )
        who = SiteName(site or task.site)
        outline = self.outline if isinstance(task.work, Init) else None
        return self.do(
            ev.UpdateArrived(
                at=self.now,
                task=task.id,
                site=who,
                facts=facts,
                digest=f"d-{task.id}",
                tensors=2,
                outline=outline,
            )
        )

    def give(self, digest: str = "given", outline: Outline | None = None) -> list[Effect]:
        """Let version 0 come with the submission."""
        return self.do(ev.ModelGiven(at=self.now, digest=digest, outline=outline))

    def describe(self, task: Task, site: str | None = None) -> list[Effect]:
        """Let a site describe a version 0 that came with the submission."""
        assert self.outline is not None
        who = SiteName(site or task.site)
        digest = f"d-{task.id}"
        return self.do(
            ev.ModelDescribed(at=self.now, task=task.id, site=who, digest=digest, outline=self.outline)
        )

    def quarantine(self, task: Task, reason: str = "NaN") -> list[Effect]:
        """Let a bad update arrive."""
        return self.do(ev.UpdateQuarantined(at=self.now, task=task.id, site=task.site, reason=reason))

    def fail(
        self, task: Task, reason: str = "out of memory", final: bool = False, unfit: bool = False
    ) -> list[Effect]:
        """Let a site report that it could not do a task."""
        about = {"task": task.id, "site": task.site, "reason": reason}
        return self.do(ev.TaskFailed(at=self.now, **about, final=final, unfit=unfit))

    def report(self, task: Task, right: int = 5, n: int = 10, loss: float = 1.0) -> list[Effect]:
        """Let a report arrive: `right` of `n` examples are classified correctly."""
        evaluation = Evaluation(n=n, loss_sum=loss * n, confusion=((right, n - right), (0, 0)))
        return self.do(ev.Reported(at=self.now, task=task.id, site=task.site, evaluation=evaluation))

    def tell(self, task: Task, n: int = 10, mean: float = 1.0, classes: tuple[int, ...] = ()) -> list[Effect]:
        """Let a site describe its data: one column with the same value in all rows."""
        profile = Profile(n=n, mean=(mean,), m2=(0.0,), classes=classes)
        return self.do(ev.Surveyed(at=self.now, task=task.id, site=task.site, profile=profile))

    def done(self, order: int, result: Result) -> list[Effect]:
        """Let worker threads carry out an order."""
        return self.do(ev.OrderDone(at=self.now, order=order, result=result))

    def order_failed(self, order: int, reason: str = "no memory") -> list[Effect]:
        """Let an order fail on the worker threads."""
        return self.do(ev.OrderFailed(at=self.now, order=order, reason=reason))

    def merged(self, version: int | None = None, **more: Any) -> list[Effect]:
        """Finish the merge in progress, or one that the job does not wait for."""
        number, version = self.merge_of(version)
        moments = {name: f"v{version}.{name}" for name in self.machine.rule.server.moments}
        usual = {"digest": f"v{version}", "moments": moments, "bytes_up": 5, "bytes_down": 7}
        return self.done(number, Merged(**usual | more))

    def merge_of(self, version: int | None = None) -> tuple[int, int]:
        """Return the order number and the version of the merge in progress, if it makes this version."""
        for number, merge in self.orders(Merge).items():
            if version in (None, merge.version):
                return number, merge.version
        return NONE, version or 1

    def examined(
        self, order: int, facts: JsonValue = None, kept: Mapping[str, str] | None = None
    ) -> list[Effect]:
        """Let a part of the rule finish its examination of updates."""
        return self.done(order, Examined(facts=facts, kept=kept or {}))

    def hop_examined(self, version: int, hop: int, mean: bool, trouble: bool = False) -> list[Effect]:
        """Let a hop be examined, or let that fail."""
        wanted = ((n, order) for n, order in self.orders(ExamineHop).items())
        number = next((n for n, order in wanted if (order.version, order.hop) == (version, hop)), NONE)
        if trouble:
            return self.order_failed(number)
        return self.done(number, HopExamined(divergence=0.25, digest="mean" if mean else ""))

    def compared(self, distance: float = 0.5, trouble: str = "") -> list[Effect]:
        """Let version 0 be compared with the reference, or let that fail."""
        number = next(iter(self.orders(Compare)), NONE)
        return (
            self.order_failed(number, trouble) if trouble else self.done(number, Compared(distance=distance))
        )

    def probe(self, task: Task, result: float) -> list[Effect]:
        """Let a site report what its probe found."""
        return self.do(ev.Probed(at=self.now, task=task.id, site=task.site, result=result))

    def ring(self, alarm: str, at: float | None = None) -> list[Effect]:
        """Let an alarm ring at its time, or at another."""
        due = self.machine.state.alarms.get(alarm, self.now)
        self.now = max(self.now, due) if at is None else at
        return self.do(ev.AlarmRang(at=self.now, alarm=alarm))

    def cancel(self) -> list[Effect]:
        """Let the operator cancel the job."""
        return self.do(ev.CancelAsked(at=self.now))

    def give_up(self, reason: str) -> list[Effect]:
        """Let the shell end the job because a rule raised an error."""
        return self.do(ev.EngineFailed(at=self.now, reason=reason))

    # What is in progress.

    def tasks(
        self, kind: type[Survey] | type[Init] | type[Probe] | type[Train] | type[Evaluate]
    ) -> dict[str, Task]:
        """Return the open tasks of a kind by site (the newest, if a site has several)."""
        return {task.site: task for task in self.machine.state.tasks.values() if isinstance(task.work, kind)}

    def evaluations(self) -> list[Task]:
        """Return the open evaluations, the oldest first."""
        return [task for task in self.machine.state.tasks.values() if isinstance(task.work, Evaluate)]

    def orders(self, kind: type[Kind]) -> dict[int, Kind]:
        """Return the open orders of a kind by number."""
        return {n: order for n, order in self.machine.state.orders.items() if isinstance(order, kind)}

    def training(self, *sites: str) -> dict[str, Task]:
        """Bring the job to its first round with these sites and return their tasks."""
        self.join(*sites)
        (init,) = self.tasks(Init).values()
        self.update(init)
        return self.tasks(Train)

    def round(self) -> None:
        """Let an update arrive for every open training task, and finish the merge."""
        for task in self.tasks(Train).values():
            self.update(task)
        self.merged()


def sent(effects: list[Effect]) -> list[Task]:
    """Return the tasks that were sent."""
    return [effect.task for effect in effects if isinstance(effect, SendTask)]


def withdrawn(effects: list[Effect]) -> list[TaskId]:
    """Return the tasks that were withdrawn."""
    return [effect.task.id for effect in effects if isinstance(effect, WithdrawTask)]


def started(effects: list[Effect], kind: type[Kind]) -> dict[int, Kind]:
    """Return the orders of a kind that were started, by number."""
    return {e.number: e.order for e in effects if isinstance(e, StartOrder) and isinstance(e.order, kind)}


def merges(effects: list[Effect]) -> list[Merge]:
    """Return the merges that were started."""
    return list(started(effects, Merge).values())


def dropped(effects: list[Effect]) -> set[str]:
    """Return the models that were dropped."""
    return {key for effect in effects if isinstance(effect, DropModels) for key in effect.keys}


def endings(effects: list[Effect]) -> list[tuple[str, str]]:
    """Return how the job ended."""
    return [(effect.status, effect.reason) for effect in effects if isinstance(effect, JobEnded)]


def stale(play: Play, act: Callable[[], object]) -> None:
    """Check that an event is refused as stale and leaves no trace."""
    before = play.picture()
    with pytest.raises(Stale):
        act()
    assert play.picture() == before
