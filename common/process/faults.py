"""Named points at which tests can kill a process, to try its most delicate moments.

HANSA_KILL_AT=POINT:N kills the process (SIGKILL) when it reaches POINT for the N-th time; POINT:N:PID kills
process PID instead, such as a store that this process depends on. HANSA_FREEZE_AT=POINT:N stops the process
there until it receives SIGCONT. Without these variables nothing happens.
"""

import os
import signal
from collections.abc import Mapping

POINTS = (
    *("job-announced", "job-entered"),
    *("deletion-recorded", "models-deleted", "journal-shrinking"),
    *("update-received", "update-encoded", "update-published", "update-journaled", "description-journaled"),
    *("merge-computed", "merge-published", "merge-journaled"),
    *("task-taken", "task-trained", "task-offered", "task-uploading", "task-uploaded"),
    *("window-opened", "window-used"),
    *("state-kept", "update-kept", "personal-kept", "personal-committed"),
    *("evaluation-done", "evaluation-reported"),
    "redis-write",
)

_point, _count, _victim = "", 1, 0
_signal = signal.SIGKILL
_reached = 0


def arm(environment: Mapping[str, str]) -> None:
    """Set the point from the variables above; needed again in a process that was forked after the import."""
    global _point, _count, _victim, _signal, _reached
    freeze = environment.get("HANSA_FREEZE_AT", "")
    sent = signal.SIGSTOP if freeze else signal.SIGKILL
    point, _, more = (freeze or environment.get("HANSA_KILL_AT", "")).partition(":")
    count, _, victim = more.partition(":")
    _point, _count, _victim, _signal, _reached = point, int(count or 1), int(victim or 0), sent, 0


def reach(point: str) -> None:
    """Kill or freeze this process, or kill the victim, if this is the chosen point."""
    global _reached  # noqa: PLW0603
    if point == _point:
        _reached += 1
        if _reached == _count:
            os.kill(_victim or os.getpid(), _signal)


arm(os.environ)
