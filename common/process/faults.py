"""Named points at which a process can be made to die, so that tests can kill it in its most delicate moments.

HANSA_KILL_AT=POINT:N ends the process with SIGKILL when it reaches POINT for the N-th time; POINT:N:PID ends
that process, on which it depends, instead. HANSA_FREEZE_AT=POINT:N stops it there until it is told to go on
(SIGCONT). Unset, nothing happens.
"""

import os
import signal
from collections.abc import Mapping

POINTS = (
    *("job-announced", "job-entered"),
    *("update-received", "update-published", "update-journaled", "description-journaled"),
    *("merge-computed", "merge-published", "merge-journaled"),
    *("task-taken", "task-trained", "task-offered", "task-uploading", "task-uploaded"),
    *("window-opened", "window-used"),
    *("evaluation-done", "evaluation-reported"),
    "redis-write",
)

_point, _count, _victim = "", 1, 0
_blow = signal.SIGKILL
_reached = 0


def arm(environment: Mapping[str, str]) -> None:
    """Set the point, from the variables above; also in a process that was forked after the import."""
    global _point, _count, _victim, _blow, _reached
    freeze = environment.get("HANSA_FREEZE_AT", "")
    blow = signal.SIGSTOP if freeze else signal.SIGKILL
    point, _, more = (freeze or environment.get("HANSA_KILL_AT", "")).partition(":")
    count, _, victim = more.partition(":")
    _point, _count, _victim, _blow, _reached = point, int(count or 1), int(victim or 0), blow, 0


def reach(point: str) -> None:
    """Die or stand still here, or end the victim, if this is the point."""
    global _reached  # noqa: PLW0603
    if point == _point:
        _reached += 1
        if _reached == _count:
            os.kill(_victim or os.getpid(), _blow)


arm(os.environ)
