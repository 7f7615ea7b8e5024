"""Effects: what the engine wants done. The controller's shell does it and reports back with events."""

from dataclasses import dataclass

from hansa.common.values.ids import ModelKey, SiteName
from hansa.common.values.tasks import Task
from hansa.controller.engine.orders import Order
from hansa.controller.values.members import Standing


@dataclass(frozen=True)
class SendTask:
    """Give a daemon a task; the task may be sent again after a reconnect."""

    task: Task


@dataclass(frozen=True)
class WithdrawTask:
    """Tell a daemon to drop a task."""

    task: Task
    reason: str


@dataclass(frozen=True)
class Pulse:
    """Tell a site in training how many optimizer steps are committed by now; the message may get lost."""

    site: SiteName
    steps: int


@dataclass(frozen=True)
class StartOrder:
    """Carry out an order on the worker threads and report OrderDone or OrderFailed."""

    number: int
    order: Order
    standing: Standing | None = None  # what counts before a merge; None if the aggregator does not remember


@dataclass(frozen=True)
class SetAlarm:
    """Report AlarmRang at this time (seconds since the epoch)."""

    alarm: str
    at: float


@dataclass(frozen=True)
class DropModels:
    """Delete models that are no longer needed."""

    keys: tuple[ModelKey, ...]


@dataclass(frozen=True)
class JobEnded:
    """The job is over; nothing follows."""

    status: str
    reason: str


Effect = SendTask | WithdrawTask | Pulse | StartOrder | SetAlarm | DropModels | JobEnded
