"""Named points at which a process can be made to die, so that tests can kill it in its most delicate moments.

HANSA_KILL_AT=POINT:N ends the process with SIGKILL when it reaches POINT for the N-th time. Unset, nothing happens.
"""

import os
import signal

POINTS = (
    *("update-received", "update-published", "update-journaled"),
    *("merge-computed", "merge-published", "merge-journaled"),
    *("task-taken", "task-trained", "task-offered", "task-uploading", "task-uploaded"),
    *("window-opened", "window-used"),
    *("evaluation-done", "evaluation-reported"),
)

_point, _, _count = os.environ.get("HANSA_KILL_AT", "").partition(":")
_reached = 0


def arm(point: str, count: int = 1) -> None:
    """Set the point in a process that was forked, whose environment came after the import."""
    global _point, _count, _reached
    _point, _count, _reached = point, str(count), 0


def reach(point: str) -> None:
    """Die here if this is the point."""
    global _reached  # noqa: PLW0603
    if point == _point:
        _reached += 1
        if _reached == int(_count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
