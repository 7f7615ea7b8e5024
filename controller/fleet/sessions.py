"""A daemon's session: what it said about itself, its tasks in hand, and messages that are yet to be sent."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hansa.common.values.errors import Refused
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.results import Progress
from hansa.common.values.stated import Stated
from hansa.common.values.tasks import Task
from hansa.common.values.wording.words import plain

PATIENCE = 15.0  # seconds that a daemon may take to send the last lines of its log
LINES, LINE = 1000, 500  # of its log: how many, and characters of each
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


@dataclass(frozen=True)
class ReadLog:
    """Ask a daemon for the last lines of its log."""

    request: int
    lines: int
    operator: str


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
    outbox: asyncio.Queue[Task | CancelTask | PulseDue | ReadLog | None] = field(
        default_factory=asyncio.Queue
    )
    # Committed steps of each job that the daemon has yet to be told.
    pulses: dict[JobId, int] = field(default_factory=dict)
    progress: dict[TaskId, Progress] = field(default_factory=dict)
    logs: dict[int, asyncio.Future[tuple[str, ...]]] = field(default_factory=dict)  # requests under way
    asked: int = 0  # requests for the log so far

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

    async def read_log(self, lines: int, operator: str) -> tuple[str, ...]:
        """Return the last lines of the daemon's log, or raise Refused with its reason."""
        self.asked += 1
        number = self.asked
        answer = self.logs[number] = asyncio.get_running_loop().create_future()
        self.outbox.put_nowait(ReadLog(number, lines, operator))
        try:
            return await asyncio.wait_for(answer, PATIENCE)
        except TimeoutError:
            raise Refused(
                f"the {self.role} of {self.site} (Hansa {self.version or 'unknown'}) has not answered in"
                f" {PATIENCE:g} s"
            ) from None
        finally:
            self.logs.pop(number, None)

    def show_log(self, request: int, lines: Sequence[str], refusal: str) -> None:
        """Take the answer to a request; one that nobody waits for is ignored."""
        answer = self.logs.get(request)
        if answer and not answer.done():
            if refusal:
                answer.set_exception(Refused(refusal))
            else:
                answer.set_result(tuple(plain(line, LINE) for line in lines[-LINES:]))

    def close(self) -> None:
        """End the daemon's stream."""
        self.outbox.put_nowait(None)
        for answer in self.logs.values():
            if not answer.done():
                answer.set_exception(Refused(f"the {self.role} of {self.site} has left"))

    @property
    def name(self) -> str:
        """The daemon's name in logs."""
        return f"{self.role} {self.site}"


def role_of(task: Task) -> DaemonRole:
    """Return which daemon of a site carries out a task."""
    return "evaluator" if task.work.kind == "evaluate" else "learner"
