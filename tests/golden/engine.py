"""Translates between golden files and the engine, so that the engine's names can change without the files.

Tasks and orders are numbered in the order in which they are issued; those of one event are sorted first.
Models are called `version 3`, `update 5` (of task 5), `moment m of version 3`, `mean of hop 1 to version 3`
and `array 0 of order 4`. Messages are not recorded, except for the reason why a job ended.

A step has a verb, `do`, and its objects:

    join, cannot join, leave   site, role (and examples)            give: version 0
    update                     task and facts                       describe: version 0  task and layers
    quarantine, fail           task
    report, survey, probe      task and findings                    done, not done       order (and findings)
    ring: the next alarms      wait: seconds                        cancel
    restart: from a snapshot   replay: from the events
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hansa.common.job.spec import JobSpec
from hansa.common.methods.importance import IMPORTANCE
from hansa.common.models.model import ModelSpec, Role, TensorInfo
from hansa.common.values.errors import Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Anatomy, Evaluation, Profile, UpdateFacts
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Compared, Examined, HopExamined, Merged, Result
from hansa.controller.plugin.outline import Outline, outline_of
from hansa.controller.rulebook.compose import compose
from hansa.controller.values.snapshots import Snapshot
from tests.golden.telling import JOB, OrderKey, Teller, Told, order_key

Step = Mapping[str, Any]


class Engine:
    """One job in progress, in the words of golden files."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._spec = JobSpec.model_validate({"app": "app.py:app", **job})
        self._machine = Machine(JOB, self._spec, compose(self._spec), 0.0)
        self._now = 0.0
        self._accepted: list[ev.Event] = []
        self._saved = Snapshot(0, "", {})
        self._teller = Teller(self._machine)
        self._receipts, self._chain = 0, ""
        self.first = self._teller.told(self._machine.start())

    # What a player may look at.

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self._machine.ended

    @property
    def alarms(self) -> list[float]:
        """The times at which alarms are due."""
        return sorted(self._machine.state.alarms.values())

    @property
    def open(self) -> dict[int, Told]:
        """Tasks that sites have yet to return."""
        tell = self._teller
        return {tell.numbers[task.id]: tell.task(task) for task in self._machine.state.tasks.values()}

    @property
    def running(self) -> dict[int, Told]:
        """Orders that worker threads have yet to carry out."""
        return self._teller.running

    def end(self) -> Told:
        """Return the outcome of the job."""
        return self._teller.end(self._receipts)

    def do(self, step: Step) -> Told:
        """Take a step and return what came of it."""
        match step["do"]:
            case "restart" | "replay":
                return self._again(step["do"] == "restart")
            case "wait":
                self._now += step["seconds"]
                return {}
            case "ring":
                self._now = max(self._now, self.alarms[0])
                due = sorted(name for name, at in self._machine.state.alarms.items() if at <= self._now)
                return self._happen(ev.AlarmRang(at=self._now, alarm=name) for name in due)
        return self._happen([self._event(step)])

    def _happen(self, events: Iterable[ev.Event]) -> Told:
        effects: list[ef.Effect] = []
        refused = False
        for event in events:
            try:
                effects += self._machine.handle(event)
            except Stale:
                refused = True
                continue
            self._accepted.append(event)
            receipt = self._machine.issued
            if receipt is not None:
                assert receipt.previous == self._chain, "the chain of receipts is broken"
                self._receipts, self._chain = self._receipts + 1, receipt.hash
        return ({"refused": True} if refused else {}) | self._teller.told(effects)

    def _again(self, saved: bool) -> Told:
        """Restart from a snapshot, or from the events since the last one; return what is to be done again."""
        if saved:
            new = self._machine.snapshot()
            self._saved = replace(new, chapters={**self._saved.chapters, **new.chapters})
        again = Machine(JOB, self._spec, compose(self._spec), 0.0)
        again.start()
        if self._saved.sequence:
            again.restore(self._saved)
        for event in self._accepted[self._saved.sequence :]:
            again.handle(ev.EVENT.validate_json(event.model_dump_json()))
        self._machine = self._teller.machine = again
        effects = again.resume()
        return {
            "tasks again": sorted(
                self._teller.numbers[e.task.id] for e in effects if isinstance(e, ef.SendTask)
            ),
            "orders again": sorted(
                self._teller.orders[order_key(e)] for e in effects if isinstance(e, ef.StartOrder)
            ),
            "alarms again": sorted(e.at for e in effects if isinstance(e, ef.SetAlarm)),
        } | self._teller.told([])

    # From steps to events.

    def _event(self, step: Step) -> ev.Event:
        at = self._now
        match step["do"]:
            case "join":
                site, role, examples = SiteName(step["site"]), step["role"], step["examples"]
                return ev.SiteJoined(at=at, site=site, role=role, examples=examples)
            case "cannot join":
                return ev.SiteUnfit(
                    at=at, site=SiteName(step["site"]), role=step["role"], reason="not allowed there"
                )
            case "leave":
                return ev.SiteLeft(at=at, site=SiteName(step["site"]), role=step["role"])
            case "give":
                return ev.ModelGiven(at=at, digest="given", outline=None)
            case "cancel":
                return ev.CancelAsked(at=at)
            case "done" | "not done":
                return self._order_event(step, at)
        task = self._teller.tasks[step["task"]]
        about: dict[str, Any] = {"at": at, "task": task.id, "site": task.site}
        match step["do"]:
            case "update":
                given = dict(step["facts"])
                own, importance = given.pop("own", None), given.pop("importance", None)
                metrics = {} if importance is None else {IMPORTANCE: importance}
                facts = UpdateFacts(**given, evaluation=_evaluation(own) if own else None, metrics=metrics)
                digest, outline = f"update {step['task']}", _outline(step.get("layers"))
                return ev.UpdateArrived(**about, facts=facts, digest=digest, tensors=2, outline=outline)
            case "describe":
                outline = _outline(step["layers"])
                assert outline is not None
                return ev.ModelDescribed(**about, digest="built", outline=outline)
            case "quarantine":
                return ev.UpdateQuarantined(**about, reason="NaN")
            case "fail":
                return ev.TaskFailed(**about, reason="out of memory", final=step.get("final", False))
            case "report":
                return ev.Reported(**about, evaluation=_evaluation(step["found"]))
            case "survey":
                return ev.Surveyed(**about, profile=Profile(**step["found"]))
            case "probe":
                return ev.Probed(**about, result=step["found"])
        raise ValueError(f"unknown step: {step['do']}")

    def _order_event(self, step: Step, at: float) -> ev.Event:
        key = next(key for key, number in self._teller.orders.items() if number == step["order"])
        self._teller.running.pop(step["order"], None)
        found, number = step.get("found", {}), self._teller.order_numbers[key]
        if step["do"] == "not done":
            return ev.OrderFailed(at=at, order=number, reason="no memory")
        return ev.OrderDone(at=at, order=number, result=self._result(key, found))

    def _result(self, key: OrderKey, found: Mapping[str, Any]) -> Result:
        match key[0]:
            case "merge":
                version = key[1]
                names = self._machine.rule.server.moments
                moments = {name: f"{name} of version {version}" for name in names}
                made = {"digest": f"version {version}", "moments": moments, "bytes_up": 5, "bytes_down": 7}
                return Merged.model_validate({**made, **found})
            case "examine":
                return Examined(facts=found.get("facts"), kept=found.get("kept", {}))
            case "hop":
                return HopExamined.model_validate(found)
        return Compared(distance=found["distance"])


def _evaluation(found: Mapping[str, Any]) -> Evaluation:
    n, right = found["n"], found["right"]
    return Evaluation(n=n, loss_sum=found["loss"] * n, confusion=((right, n - right), (0, 0)))


def _outline(layers: list[str] | None) -> Outline | None:
    if not layers:
        return None
    tensors = [
        TensorInfo(f"{name}.weight", "float32", (3, 3), Role.PARAM, at) for at, name in enumerate(layers)
    ]
    tensors += [TensorInfo(f"{name}.bias", "float32", (3,), Role.PARAM, at) for at, name in enumerate(layers)]
    return outline_of(ModelSpec(tuple(tensors), tuple(layers)), Anatomy(blocks=tuple(range(len(layers)))))
