"""Logging for the daemons: one line per event, on standard error or in a rotated file.

HANSA_LOG         the lowest level to log: debug, info, warning, error
HANSA_LOG_FORMAT  text, or json: one object per line, for programs
HANSA_LOG_FILE    the file to write to instead of standard error (`--daemon` sets it)
HANSA_LOG_SIZE    bytes after which a file is rotated (10 MiB); five older ones are kept
"""

import logging
import os
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from hansa.common.values.documents import escaped
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import CONTROL

SIZE, KEPT = 10 << 20, 5


class TextFormatter(logging.Formatter):
    """One line per event. Text from elsewhere cannot start a line of its own; tracebacks are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Format an event."""
        record.message = CONTROL.sub(" ", record.getMessage())
        record.asctime = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line = f"{record.asctime} {record.levelname:<7} {record.name}: {record.message}"
        trace = _trace(self, record)
        return "\n".join([line, *(f"    {CONTROL.sub(' ', part)}" for part in trace.splitlines())])


class JsonFormatter(logging.Formatter):
    """One JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        """Format an event."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        trace = _trace(self, record)
        return escaped(event | ({"trace": trace} if trace else {}))


class BriefFormatter(logging.Formatter):
    """For commands without a log: one line for people, like their error messages, without a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Format an event."""
        return f"hansa: {CONTROL.sub(' ', record.getMessage())}"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


class RotatingLog(RotatingFileHandler):
    """A log file that keeps standard output and error with it when rotated: native code writes there, too."""

    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        return os.fdopen(handle, "a", encoding="utf-8")


def set_up_brief() -> None:
    """Print warnings like a command's other messages, until a daemon sets up its log."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(BriefFormatter())


def set_up(level: str = "") -> None:
    """Set up logging as the environment says."""
    wanted = (level or os.environ.get("HANSA_LOG") or "info").upper()
    file = os.environ.get("HANSA_LOG_FILE")
    size = os.environ.get("HANSA_LOG_SIZE") or str(SIZE)
    if not size.isdigit():
        raise InvalidInput(f"HANSA_LOG_SIZE={size}: must be a number of bytes")
    handler = RotatingLog(file, maxBytes=int(size), backupCount=KEPT) if file else logging.StreamHandler()
    as_json = os.environ.get("HANSA_LOG_FORMAT", "text").lower() == "json"
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=getattr(logging, wanted, logging.INFO), handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.WARNING)
