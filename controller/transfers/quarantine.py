"""Rejected updates: the job is told, and the reason is remembered for sites that ask again."""

import asyncio
import logging

from hansa.common.values.errors import Rejected
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.tasks import Task
from hansa.controller.engine import events as ev
from hansa.controller.jobs.runner import JobRunner

log = logging.getLogger(__name__)
REMEMBERED = 256  # reasons


class Quarantine:
    """Remembers why the newest few updates were rejected."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[SiteName, TaskId], str] = {}

    def require_none(self, site: SiteName, task: TaskId) -> None:
        """Raise Rejected again if a site's update for a task was rejected."""
        if (site, task) in self._reasons:
            raise Rejected(self._reasons[site, task])

    async def put(self, runner: JobRunner, task: Task, reason: str) -> None:
        """Reject the update for a task; return when the job has taken note."""
        while len(self._reasons) >= REMEMBERED:
            self._reasons.pop(next(iter(self._reasons)))
        self._reasons[task.site, task.id] = reason
        log.warning("job %s: the update of %s is quarantined: %s", task.job, task.site, reason)
        event = ev.UpdateQuarantined(at=runner.now(), task=task.id, site=task.site, reason=reason)
        await asyncio.wait([runner.post(event)])

    def clear(self) -> None:
        """Forget all reasons."""
        self._reasons.clear()
