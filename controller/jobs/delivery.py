"""What a job sends to daemons: tasks, withdrawals of tasks, and pulses."""

from collections.abc import Callable

from hansa.common.values.ids import JobId, TaskId
from hansa.controller.engine import effects as ef
from hansa.controller.engine import events as ev
from hansa.controller.engine.machine import Machine
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.fleet.sessions import ROLES, CancelTask, Session, role_of


class Delivery:
    """Sends one job's messages to connected daemons; the others get them when they reconnect."""

    def __init__(self, job: JobId, fleet: Fleet, discard: Callable[[TaskId], None]) -> None:
        self._job, self._fleet = job, fleet
        self._discard = discard  # throws away the frames of an update that have arrived
        self.unsent: set[TaskId] = set()  # tasks of events that are not yet durable

    def carry_out(self, effect: ef.Effect) -> None:
        """Send what an effect asks for."""
        match effect:
            case ef.SendTask(task):
                session = self._fleet.find(task.site, role_of(task))
                if session and task.id not in session.in_hand:
                    session.send(task)
            case ef.WithdrawTask(task, why):
                self._discard(task.id)
                session = self._fleet.find(task.site, role_of(task))
                if session:
                    session.progress.pop(task.id, None)
                    session.send(CancelTask(task.id, why))
            case ef.Pulse(site, steps):
                session = self._fleet.find(site, "learner")
                if session:
                    session.pulse(self._job, steps)

    def settle(self, event: ev.Event) -> None:
        """Remove a task from its daemon's tasks in hand once its result is durable."""
        task, site = getattr(event, "task", None), getattr(event, "site", None)
        if task and site:
            for role in ROLES:
                session = self._fleet.find(site, role)
                if session:
                    session.in_hand.discard(task)
                    session.progress.pop(task, None)

    def catch_up(self, session: Session, machine: Machine) -> None:
        """Send a daemon what it has missed: its open tasks and the newest pulse."""
        for task in machine.tasks_of(session.site):
            if role_of(task) == session.role and task.id not in session.in_hand | self.unsent:
                session.send(task)
        steps = machine.pulse_of(session.site) if session.role == "learner" else None
        if steps is not None:
            session.pulse(self._job, steps)
