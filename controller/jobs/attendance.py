"""What follows when a daemon comes or goes: the audit log records it, and every job is told."""

from hansa.common.values.ids import SiteName
from hansa.controller.audit.log import Audit
from hansa.controller.fleet.sessions import CancelTask, DaemonRole, Session
from hansa.controller.jobs.directory import Jobs
from hansa.controller.jobs.invitations import offer


class Attendance:
    """The fleet's listener."""

    def __init__(self, jobs: Jobs, audit: Audit) -> None:
        self._jobs, self._audit = jobs, audit

    def attended(self, session: Session) -> None:
        """Offer a daemon to every job; tell it to drop tasks that are over."""
        self._audit.moved(session.name, "joined", session.peer, f"instance {session.instance}")
        for task in list(session.in_hand):
            if not self._jobs.awaits(task):
                session.send(CancelTask(task, "the task is over"))
        for runner in self._jobs.runners:
            offer(runner, session)

    def left(self, site: SiteName, role: DaemonRole) -> None:
        """Tell every job that a daemon is gone."""
        self._audit.moved(f"{role} {site}", "left", f"{role} {site}")
        for runner in self._jobs.runners:
            runner.left(site, role)
