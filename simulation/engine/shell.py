"""The shell around the engine of a simulated job: what a clock and a journal that is replayed have in common.

It has tasks done by a crew, carries out orders, keeps what sites remember, and turns results into events.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import assert_never

from hansa.common.plugins.check import ANYTHING
from hansa.common.values.errors import Stale, reason
from hansa.common.values.ids import SiteName, TaskId, update_key
from hansa.common.values.results import Evaluation, Failure, Profile
from hansa.common.values.tasks import Task, Train
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Merged
from hansa.controller.jobs.chores import Traffic
from hansa.controller.work.bench import Bench
from hansa.simulation.crew.base import Assignment, Crew, Outcome, Paused, Update
from hansa.simulation.engine.intake import Intake
from hansa.simulation.sites.data import VirtualData
from hansa.simulation.storage.memories import Memories
from hansa.simulation.storage.store import SharedStore

log = logging.getLogger(__name__)


class Shell(ABC):
    """Runs one job; a subclass says when things happen."""

    def __init__(
        self,
        machine: Machine,
        bench: Bench,
        store: SharedStore,
        crew: Crew,
        data: VirtualData,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.machine, self.traffic, self.sites = machine, Traffic(), data.names
        self.intake = Intake(machine, bench, store, self.traffic)
        self._numbers = {name: number for number, name in enumerate(data.names)}
        self._bench, self._store, self._crew, self._changed = bench, store, crew, changed
        self.memories = Memories()
        self._submitted: set[TaskId] = set()  # tasks whose outcome the crew has
        self._assigned: dict[TaskId, Assignment] = {}  # tasks whose outcome the job has not been told
        self.remarks: list[str] = []  # on how tasks are done
        self.tick: Callable[[], None] = lambda: None  # called between two events

    @property
    @abstractmethod
    def at(self) -> float:
        """The time, in seconds."""

    @abstractmethod
    def run(self) -> None:
        """Let the job run to its end."""

    def begin(self, first: ev.ModelGiven | None = None) -> None:
        """Start the job."""
        self._carry_out(self.machine.start())
        if first is not None:
            self.handle(first)

    def cancel(self) -> None:
        """End the job as its operator would."""
        if not self.machine.ended:
            self.handle(ev.CancelAsked(at=self.at))

    def handle(self, event: ev.Event, taken: Callable[[], None] = lambda: None) -> bool:
        """Apply an event and carry out what follows; return whether the job took it.

        If it did, `taken` is called before anything follows: a site has its receipt before its next task.
        """
        try:
            effects = self.machine.handle(event)
        except Stale:
            return False
        except ANYTHING as error:
            log.exception("the engine failed on %s", event.kind)
            effects = self.machine.abandon(f"the rule failed: {reason(error)}", self.at)
        taken()
        self._carry_out(effects)
        self._changed()
        return True

    def _carry_out(self, effects: list[ef.Effect]) -> None:
        tasks: list[Task] = []
        for effect in effects:
            match effect:
                case ef.SendTask(task):
                    tasks.append(task)
                case ef.WithdrawTask(task):
                    self._withdraw(task)
                case ef.StartOrder():
                    self._order(effect)
                case ef.SetAlarm(alarm, at):
                    self._set_alarm(alarm, at)
                case ef.DropModels(keys):
                    for key in keys:
                        self.intake.drop(key)
                case ef.JobEnded():
                    self._bench.forget()
                case ef.Pulse(site, steps):
                    self._tell(site, steps)
                case _:
                    assert_never(effect)
        if tasks:
            self._send(tasks)

    # What happens later, and when.

    @abstractmethod
    def _send(self, tasks: Sequence[Task]) -> None:
        """Let sites have tasks."""

    @abstractmethod
    def _withdraw(self, task: Task) -> None:
        """Let a site drop a task."""

    @abstractmethod
    def _order(self, start: ef.StartOrder) -> None:
        """Have an order carried out."""

    @abstractmethod
    def _set_alarm(self, alarm: str, at: float) -> None:
        """Set an alarm."""

    @abstractmethod
    def _tell(self, site: SiteName, steps: int) -> None:
        """Tell a site in training how many steps are committed."""

    # Tasks.

    def _number(self, task: Task) -> int:
        return self._numbers[task.site]

    def _submit(self, tasks: Sequence[tuple[Task, tuple[int, ...] | None]]) -> None:
        """Have tasks done, each with the pulses that it may listen to."""
        self._submitted.update(task.id for task, _ in tasks)
        assignments = [
            Assignment(task, self._number(task), self.memories.get(self._number(task)), pulses)
            for task, pulses in tasks
        ]
        self._assigned.update({each.task.id: each for each in assignments})
        self._crew.submit(assignments)

    def _submit_again(self, assignments: dict[TaskId, Assignment]) -> None:
        """Have the tasks of a saved simulation done: nobody has their outcomes any more."""
        self._assigned = assignments
        self._submitted = set(assignments)
        self._crew.submit(list(assignments.values()))

    def _outcome(self, task: TaskId) -> Outcome:
        """Wait for the outcome of a task."""
        outcome = self._crew.outcome(task)
        self.remarks += [remark for remark in outcome.remarks if remark not in self.remarks]
        self._submitted.discard(task)
        return outcome

    def _forget(self, task: TaskId, outcome: Outcome | None = None) -> None:
        """Give up a task, with its outcome if that is known already."""
        self._assigned.pop(task, None)
        result = outcome.result if outcome else None
        if isinstance(result, Update):
            self.intake.discard(result)
        if task in self._submitted or isinstance(result, Paused):
            self._submitted.discard(task)
            self._crew.withdraw(task)

    def _take(self, task: Task, outcome: Outcome, seconds: float) -> None:
        """Tell the job what came of a task; `seconds` says how long the site has trained."""
        self._assigned.pop(task.id, None)
        result, number = outcome.result, self._number(task)
        if not isinstance(result, Update):
            self.handle(self._report(task, result))
            return
        if outcome.memory is not None:  # the job may refuse the update, but the site has trained
            self.memories.put(number, outcome.memory)
        event = self.intake.take(task, result, seconds, self.at)
        if not isinstance(event, ev.UpdateArrived):
            self.handle(event)
        elif not self.handle(event, lambda: self._commit(task)):
            self._store.delete(update_key(task.id))

    def _commit(self, task: Task) -> None:
        """Let a site have the receipt of its update."""
        number = self._number(task)
        memory = self.memories.get(number)
        if isinstance(task.work, Train) and memory is not None:
            self.memories.put(number, memory.committed(task))

    def _report(self, task: Task, result: Evaluation | Profile | Failure | Paused | float) -> ev.Event:
        head = {"at": self.at, "task": task.id, "site": task.site}
        match result:
            case Evaluation():
                return ev.Reported(**head, evaluation=result)
            case Profile():
                return ev.Surveyed(**head, profile=result)
            case Failure(reason=why, final=final, unfit=unfit):
                return ev.TaskFailed(**head, reason=why, final=final, unfit=unfit)
            case float() | int():
                return ev.Probed(**head, result=result)
        raise AssertionError("training that is paused has no result yet")

    # Orders.

    def _carried_out(self, start: ef.StartOrder, at: float) -> ev.Event:
        """Carry out an order; return its result, which is known at a time."""
        drafts = self._bench.drafts()
        try:
            if prepare := self._bench.preparation(start.order):
                prepare()
            result = self._bench.carry_out(start, drafts).result
            if isinstance(result, Merged):
                up, down = self.traffic.take()
                result = result.model_copy(update={"bytes_up": up, "bytes_down": down})
            return ev.OrderDone(at=at, order=start.number, result=result)
        except ANYTHING as error:
            log.exception("%s failed", self._bench.name(start.order))
            drafts.discard()
            return ev.OrderFailed(at=at, order=start.number, reason=reason(error))
