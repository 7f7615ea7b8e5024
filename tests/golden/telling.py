"""The engine's effects and state in the words of golden files: the other half of `engine.py`."""

from collections.abc import Iterable
from typing import Any

from hansa.common.values.history import Findings
from hansa.common.values.ids import (
    JobId,
    ModelKey,
    TaskId,
    community_key,
    hop_key,
    kept_key,
    moment_key,
    reference_key,
    update_key,
)
from hansa.common.values.tasks import Evaluate, Survey, Task, Train
from hansa.controller.engine import effects as ef
from hansa.controller.engine.accounts.participation import shortfalls
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Examine, ExamineHop, Merge
from hansa.controller.values.members import Member, Membership, Standing, overlay

JOB = JobId("j1")
HOPS, ARRAYS = 8, 8  # the most in any story
Told = dict[str, Any]
OrderKey = tuple[Any, ...]  # what identifies an order to the engine


class Teller:
    """Numbers tasks and orders, names models, and describes what has changed since the last call."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tasks: dict[int, Task] = {}
        self.numbers: dict[TaskId, int] = {}
        self.orders: dict[OrderKey, int] = {}
        self.order_numbers: dict[OrderKey, int] = {}  # the engine's own
        self.running: dict[int, Told] = {}  # orders in progress
        self._keys: dict[ModelKey, str] = {reference_key(JOB): "reference"}
        self._before: dict[str, Told] = {}

    def told(self, effects: list[ef.Effect]) -> Told:
        """Describe effects, and what has changed in the job's state."""
        told: Told = {}
        sent = [effect.task for effect in effects if isinstance(effect, ef.SendTask)]
        for task in sorted(sent, key=self._place):
            number = self.numbers.setdefault(task.id, len(self.numbers) + 1)
            self.tasks[number], self._keys[update_key(task.id)] = task, f"update {number}"
            told.setdefault("sent", []).append({"task": number, **self.task(task)})
        for effect in sorted((e for e in effects if isinstance(e, ef.StartOrder)), key=order_key):
            number = self.orders.setdefault(order_key(effect), len(self.orders) + 1)
            self.order_numbers[order_key(effect)] = effect.number
            self.running[number] = self._order(effect)
            told.setdefault("ordered", []).append({"order": number, **self.running[number]})
        withdrawn = sorted(self.numbers[e.task.id] for e in effects if isinstance(e, ef.WithdrawTask))
        alarms = sorted(e.at for e in effects if isinstance(e, ef.SetAlarm))
        pulses = {e.site: e.steps for e in effects if isinstance(e, ef.Pulse)}
        dropped = sorted(self._name(key) for e in effects if isinstance(e, ef.DropModels) for key in e.keys)
        for name, value in (
            ("withdrawn", withdrawn),
            ("alarms", alarms),
            ("pulses", pulses),
            ("dropped", dropped),
        ):
            told |= {name: value} if value else {}
        now = self._standing()
        for name, standing in now.items():
            before = self._before.get(name, {})
            news: Told = {key: None for key in before if key not in standing}
            news |= {key: value for key, value in standing.items() if before.get(key) != value}
            told |= {name: news} if news else {}
        self._before = now
        return told

    def _place(self, task: Task) -> tuple[Any, ...]:
        return task.work.kind, task.site, task.hop, task.slot, [self._name(key) for key in task.models]

    def task(self, task: Task) -> Told:
        """Describe a task; fields that are 0 or empty are left out."""
        work = task.work
        told: Told = {
            "site": task.site,
            "kind": work.kind,
            "round": task.round,
            "hop": task.hop,
            "slot": task.slot,
        }
        told |= {"turn": task.turn, "models": [self._name(key) for key in task.models]}
        if task.standard:
            told["standard"] = [task.standard.kind, list(task.standard.mean), list(task.standard.deviation)]
        if isinstance(work, Train):
            told |= {
                "base": work.version,
                "committed": work.committed,
                "epochs": work.epochs,
                "steps": work.steps,
            }
            told |= {"batches": work.batches, "after": self.numbers.get(TaskId(work.after), 0)}
            told |= {
                "lr": work.optimizer.lr,
                "tensors": list(work.tensors),
                "validated": work.validate_update,
            }
            told["plugins"] = {plugin.name: dict(plugin.args) for plugin in work.plugins}
        elif isinstance(work, Evaluate):
            told |= {"base": work.version, "validation": work.validation}
        elif isinstance(work, Survey):
            told |= {"moments": work.moments, "columns": work.columns, "classes": work.classes}
        return {name: value for name, value in told.items() if value or name == "base"}

    def _order(self, start: ef.StartOrder) -> Told:
        match start.order:
            case Merge() as order:
                made: Told = {"work": "merge", "version": order.version, "from": self._name(order.current)}
                changes = {"added": order.added, "removed": order.removed, "reweighed": order.reweighed}
                made |= {name: self._members(given) for name, given in changes.items()}
                members = self._members(_counting(start, self.machine))
                made |= {"members": members if members != made["added"] else [], "staleness": order.staleness}
                return {name: value for name, value in (made | {"still": order.still}).items() if value}
            case ExamineHop() as hop:
                compared = [[self._name(key) for key in pair if key] for pair in hop.compared]
                mean = {"mean": bool(hop.members), "compared": compared}
                return {"work": "hop", "version": hop.version, "hop": hop.hop, **mean}
            case Examine() as examination:
                read = sorted(self._name(key) for key in examination.reads)
                return {"work": "examine", "part": examination.point, "reads": read}
        return {"work": "measure"}

    def _members(self, given: Iterable[Member]) -> list[list[Any]]:
        """Return the task, the weight, the number of tensors (0: all) and the base, if any, of each."""
        return sorted(
            [self.numbers[m.task], m.weight, len(m.tensors or ()), *([self._name(m.base)] if m.base else [])]
            for m in given
        )

    def _standing(self) -> dict[str, Told]:
        """Describe the job's state, version by version."""
        state = self.machine.state
        told: dict[str, Told] = {"job": {"status": state.status, "phase": state.phase}}
        for record in state.history:
            made: Told = {
                "round": record.round,
                "phase": record.phase,
                "bytes": [record.bytes_up, record.bytes_down],
            }
            made |= {"contributions": dict(sorted(record.contributions.items())), "steps": record.steps}
            made |= {
                "updates": sum(u.weight is not None for u in record.updates),
                "still": record.still,
                "lost": sorted(record.lost),
            }
            made |= {"staleness": {site: [*stale] for site, stale in record.staleness.items()}}
            made["scores"] = sorted(
                [site_of(name), score.value, score.coverage] for name, score in record.scores.items()
            )
            made |= {"distance": record.distance, "noted": bool(record.note), "covered": record.covered}
            made |= {"metrics": dict(self.machine.metrics(record)), **_findings(record)}
            made["hops"] = [
                {"hop": hop.hop, "sites": hop.sites, "skipped": hop.skipped, "lost": sorted(hop.lost)}
                | {"divergence": hop.divergence, "metrics": hop.metrics, **_findings(hop)}
                for hop in record.hops
            ]
            told[f"version {record.version}"] = {name: value for name, value in made.items() if value}
        return told

    def end(self, receipts: int) -> Told:
        """Describe the outcome of the job."""
        state = self.machine.state
        accounts = sorted(state.participation.items())
        short = shortfalls(state, self.machine.rule.pace.common_rounds)
        return {
            "status": state.status,
            "reason": state.reason,
            "receipts": receipts,
            "models": sorted(self._name(key) for key in state.models),
            "bytes": [state.bytes_up, state.bytes_down],
            "steps": state.steps,
            "counting": {site: [m.weight for m in held] for site, held in sorted(state.members.items())},
            "asked, answered, failed": {
                site: [who.asked, who.answered, who.failures] for site, who in accounts
            },
            "short of": {
                each.site: [each.contributed, each.asked, each.missed, each.known] for each in short
            },
        }

    def _name(self, key: ModelKey) -> str:
        if key not in self._keys:
            for version in range(self.machine.state.version + 2):
                self._keys[community_key(JOB, version)] = f"version {version}"
                for name in self.machine.rule.server.moments:
                    self._keys[moment_key(JOB, version, name)] = f"moment {name} of version {version}"
                for hop in range(1, HOPS + 1):
                    self._keys[hop_key(JOB, version, hop)] = f"mean of hop {hop} to version {version}"
            for (kind, *which), number in self.orders.items():
                if kind == "examine":
                    self._keys |= {
                        kept_key(JOB, which[0], at): f"array {at} of order {number}" for at in range(ARRAYS)
                    }
        return self._keys[key]


def order_key(start: ef.StartOrder) -> OrderKey:
    """Return what identifies an order apart from its number, which only examinations need."""
    match start.order:
        case Merge(version=version):
            return ("merge", version)
        case ExamineHop(version=version, hop=hop):
            return ("hop", version, hop)
        case Examine():
            return ("examine", start.number)
    return ("measure",)


def _counting(start: ef.StartOrder, machine: Machine) -> Iterable[Member]:
    """Return all members that count once a merge is done."""
    order, outline = start.order, machine.state.outline
    assert isinstance(order, Merge)
    names = [tensor.name for tensor in outline.tensors] if outline else []
    changed = overlay(start.standing, (*order.added, *order.reweighed), names)[0]
    gone: Standing = {member.site: [] for member in order.removed}
    return Membership(start.standing or {}, {**gone, **changed})


def site_of(name: str) -> str:
    """Return the site of a score; if models travel, the name of a score may also contain the slot."""
    return name.partition(" ")[0]


def _findings(record: Findings) -> Told:
    found = {
        "examples": record.examples,
        "of": record.examples_total,
        "unevaluated": sorted(record.unevaluated),
    }
    return {name: value for name, value in found.items() if value}
