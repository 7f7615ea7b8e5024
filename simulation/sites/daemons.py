"""The daemons of virtual sites: each does one task at a time, in the order in which they came."""

from collections import deque
from dataclasses import dataclass

from hansa.common.values.ids import TaskId
from hansa.common.values.tasks import Task
from hansa.controller.engine.events import Role
from hansa.controller.fleet.sessions import role_of
from hansa.simulation.crew.base import Outcome


@dataclass(eq=False)
class Stint:
    """A task that a daemon has begun."""

    task: Task
    site: int
    began: int  # when it had the models
    outcome: Outcome | None = None
    # The rest is of training that listens.
    pulses: tuple[int, ...] | None = None  # steps committed to the job at its start and after each epoch
    epoch: int = 0  # steps of its first epoch
    reached: int = 0  # steps up to the end of the last epoch

    def __getstate__(self) -> dict[str, object]:
        """Return what is saved of it: the task is done again."""
        return self.__dict__ | {"outcome": None}


class Daemons:
    """The connected daemons of all sites, and their tasks."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, Role], deque[Task]] = {}  # the first task of each is in hand
        self._stints: dict[TaskId, Stint] = {}

    def join(self, site: int, role: Role) -> None:
        """Connect a daemon."""
        self._queues[site, role] = deque()

    def leave(self, site: int, role: Role) -> list[tuple[Task, Stint | None]]:
        """Disconnect a daemon; return its tasks, which are lost, and what it has begun of them."""
        return [(task, self._stints.pop(task.id, None)) for task in self._queues.pop((site, role))]

    def is_connected(self, site: int, role: Role) -> bool:
        """Whether a daemon is connected."""
        return (site, role) in self._queues

    def has(self, site: int, task: Task) -> bool:
        """Whether a daemon has a task."""
        return any(each.id == task.id for each in self._queues.get((site, role_of(task)), ()))

    def give(self, site: int, task: Task) -> bool:
        """Let a daemon have a task; return whether it begins now."""
        queue = self._queues[site, role_of(task)]
        queue.append(task)
        return len(queue) == 1

    def begin(self, stint: Stint) -> None:
        """Enter what a daemon has begun."""
        self._stints[stint.task.id] = stint

    def is_under_way(self, stint: Stint) -> bool:
        """Whether a daemon still works on what it has begun; a task may have been given to it again since."""
        return self._stints.get(stint.task.id) is stint

    def finish(self, site: int, task: Task) -> tuple[Stint | None, Task | None]:
        """Take a task from a daemon, whatever became of it.

        Return what was begun of it, and the task that the daemon begins next.
        """
        stint, queue = self._stints.pop(task.id, None), self._queues.get((site, role_of(task)))
        if not queue:
            return stint, None
        was_in_hand = queue[0].id == task.id
        for each in [each for each in queue if each.id == task.id]:
            queue.remove(each)
        return stint, queue[0] if was_in_hand and queue else None
