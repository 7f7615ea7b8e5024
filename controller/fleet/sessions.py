"""A daemon's session: what it said about itself, its tasks in hand, and messages that are yet to be sent."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.results import Progress
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Task

DaemonRole = Literal["learner", "evaluator"]
ROLES: tuple[DaemonRole, ...] = ("learner", "evaluator")


@dataclass(frozen=True)
class AppState:
    """Whether an app can be used at a site."""

    error: str
    examples: int
    stated: Stated = field(default_factory=Stated)


@dataclass(frozen=True)
class CancelTask:
    """Tell a daemon to drop a task."""

    task: TaskId
    reason: str


@dataclass(frozen=True)
class PulseDue:
    """Tell a daemon how far a job has come; `Session.pulses` has the number."""

    job: JobId


@dataclass
class Session:
    """A connected daemon."""

    site: SiteName
    role: DaemonRole
    instance: str
    apps: Mapping[str, AppState]
    in_hand: set[TaskId]
    since: float
    last_seen: float
    version: str = ""
    peer: str = ""
    outbox: asyncio.Queue[Task | CancelTask | PulseDue | None] = field(default_factory=asyncio.Queue)
    # Committed steps of each job that the daemon has yet to be told.
    pulses: dict[JobId, int] = field(default_factory=dict)
    progress: dict[TaskId, Progress] = field(default_factory=dict)

    def send(self, message: Task | CancelTask) -> None:
        """Put a message into the daemon's stream."""
        if isinstance(message, Task):
            self.in_hand.add(message.id)
        else:
            self.in_hand.discard(message.task)
        self.outbox.put_nowait(message)

    def pulse(self, job: JobId, steps: int) -> None:
        """Tell the daemon how far a job has come; a slow daemon is told only the newest number."""
        if job not in self.pulses:
            self.outbox.put_nowait(PulseDue(job))
        self.pulses[job] = steps

    def close(self) -> None:
        """End the daemon's stream."""
        self.outbox.put_nowait(None)

    @property
    def name(self) -> str:
        """The daemon's name in logs."""
        return f"{self.role} {self.site}"


def role_of(task: Task) -> DaemonRole:
    """Return which daemon of a site carries out a task."""
    return "evaluator" if task.work.kind == "evaluate" else "learner"
