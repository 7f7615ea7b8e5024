"""The last lines of a daemon's log, for operators to whom the site's owner shows them.

Only what Hansa itself logs is kept, never what apps log, without tracebacks. Paths, secrets and long opaque
words are removed before a line is kept.
"""

import logging
import re
from collections import deque

from hansa.common.values.wording.words import plain

KEPT = 1000  # lines
LINE, ALL = (
    500,
    48 << 10,
)  # characters of a line, and bytes of an answer: a message to the controller is small
LOGGER = "hansa"
SENSITIVE = r"(?:passw|passphrase|secret|token|key|credential|authorization)"
NAMED = rf"""(?i)\b([\w-]*{SENSITIVE}[\w-]*)['"]?\s*[=:]\s*"""
VALUE = r"""(?:bearer\s+|basic\s+)?(?:'[^']*'|"[^"]*"|\S+)"""
HIDDEN = (
    (re.compile(NAMED + VALUE), r"\1=[hidden]"),
    (re.compile(r"""(?i)\b(bearer)\s+\S+"""), r"\1 [hidden]"),
    (re.compile(r"""'[^']*[/\\][^']*'|"[^"]*[/\\][^"]*"|[^\s'"]*[/\\][^\s'"]*"""), "[path]"),
    (re.compile(r"""[\w+=-]{32,}"""), "[hidden]"),
)


def shareable(text: str) -> str:
    """Return one clean line without paths, secrets and long opaque words."""
    text = plain(text, 4 * LINE)
    for pattern, instead in HIDDEN:
        text = pattern.sub(instead, text)
    return text[:LINE]


class LogTail(logging.Handler):
    """Keeps the last lines that Hansa logged, from `open` to `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._times = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            at = self._times.formatTime(record, "%Y-%m-%dT%H:%M:%S")
            raised = record.exc_info[0] if record.exc_info else None
            why = f" ({raised.__name__})" if raised else ""
            self._lines.append(f"{at} {record.levelname:<7} {shareable(record.getMessage())}{why}")
        except Exception:  # an argument that cannot be written must not end the daemon
            self.handleError(record)

    def open(self) -> None:
        """Begin to keep lines."""
        logging.getLogger(LOGGER).addHandler(self)

    def close(self) -> None:
        """Stop keeping lines."""
        logging.getLogger(LOGGER).removeHandler(self)
        super().close()

    def last(self, most: int) -> list[str]:
        """Return the last lines, at most so many, as far as they fit into an answer."""
        chosen: deque[str] = deque()
        room = ALL
        for line in reversed(self._lines):
            room -= len(line.encode()) + 4
            if room < 0 or len(chosen) >= most:
                break
            chosen.appendleft(line)
        return list(chosen)
