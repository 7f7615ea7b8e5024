"""Reading the log file of a daemon that was started with `--daemon`, also while it grows and is rotated."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hansa.common.values.errors import NotFound, StoreFailed

LOOK = 0.2  # seconds between two looks at a file that may have grown


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log; those of the file rotated last come first if they are needed."""
    if not log.exists():
        raise NotFound(
            f"there is no log {log}: only --daemon writes one; service managers keep the logs of what they"
            " start (`journalctl -u UNIT`, `docker logs CONTAINER`, `kubectl logs POD`)"
        )
    lines: list[str] = []
    for path in (log, log.with_name(f"{log.name}.1")):
        if len(lines) < count:
            with suppress(FileNotFoundError):
                lines = [*_read(path).splitlines(), *lines]
    return lines[-count:] if count else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreFailed(f"the log {path} cannot be read: {error.strerror}") from None


def follow(log: Path, pause: Callable[[float], object] = time.sleep) -> Iterator[str]:
    """Yield what is appended to a log from now on, for ever; after a rotation, of the new file, too."""
    file = log.open(encoding="utf-8", errors="replace")
    file.seek(0, os.SEEK_END)
    try:
        while True:
            if text := file.read():
                yield text
            elif _is_new(log, file.fileno()):
                yield file.read()  # what was written between the last look and the rotation
                file.close()
                file = log.open(encoding="utf-8", errors="replace")
            else:
                pause(LOOK)
    finally:
        file.close()


def _is_new(log: Path, descriptor: int) -> bool:
    try:
        return log.stat().st_ino != os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False  # between two steps of a rotation
