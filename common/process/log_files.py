"""Reading the log file of a daemon that was started with `--daemon`, also while it grows and is rotated."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hansa.common.values.errors import NotFound, StoreFailed

LOOK = 0.2  # seconds between two looks at a file that may have grown


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log; those of the file rotated last come first if they are needed."""
    with _opened(log) as file:
        return _last(log, file, count)


def _last(log: Path, file: TextIO, count: int) -> list[str]:
    """Read a log to its end and return its last lines."""
    lines = file.read().splitlines()
    if len(lines) < count:
        with suppress(NotFound), _opened(log.with_name(f"{log.name}.1")) as rotated:
            lines = [*rotated.read().splitlines(), *lines]
    return lines[-count:] if count else []


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise NotFound(
            f"there is no log {path}: only --daemon writes one; service managers keep the logs of what they"
            " start (`journalctl -u UNIT`, `docker logs CONTAINER`, `kubectl logs POD`)"
        ) from None
    except OSError as error:
        raise StoreFailed(f"the log {path} cannot be read: {error.strerror}") from None


def follow(log: Path, count: int, pause: Callable[[float], object] = time.sleep) -> Iterator[str]:
    """Yield the last lines of a log and what is appended, for ever, also over rotations."""
    file = _opened(log)
    try:
        yield "".join(f"{line}\n" for line in _last(log, file, count))
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
