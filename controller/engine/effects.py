"""What the engine wants done. The controller's shell does it and reports back with events."""

from dataclasses import dataclass

from hansa.common.ids import ModelKey, SiteName, TaskId
from hansa.common.tasks import Task, Value


@dataclass(frozen=True)
class SendTask:
    """Put a task into a daemon's hands; it may be sent again after a reconnect."""

    task: Task


@dataclass(frozen=True)
class WithdrawTask:
    """Tell a daemon to drop a task."""

    task: Task
    reason: str


class MergePart(Value):
    """One contribution to a merge."""

    site: SiteName
    task: TaskId
    model: ModelKey
    weight: float


class MergePlan(Value):
    """Compute community model `version` from these contributions and the current model."""

    version: int
    current: ModelKey
    parts: tuple[MergePart, ...]


@dataclass(frozen=True)
class StartMerge:
    """Carry out a merge plan on the worker threads and answer with Merged or MergeFailed."""

    plan: MergePlan


@dataclass(frozen=True)
class SetAlarm:
    """Answer with AlarmRang at that time (seconds since the epoch)."""

    alarm: str
    at: float


@dataclass(frozen=True)
class DropModels:
    """Delete models that nobody needs any more."""

    keys: tuple[ModelKey, ...]


@dataclass(frozen=True)
class JobEnded:
    """The job has reached its end; nothing will follow."""

    status: str
    reason: str


Effect = SendTask | WithdrawTask | StartMerge | SetAlarm | DropModels | JobEnded
