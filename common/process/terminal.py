"""The terminal: everything that a command prints passes here, so that text of others cannot control it.

Names and reasons come from sites, from the controller, from files. Each is checked or cleaned where it comes
in. This is the last check on the way out, for standard output and standard error and for everything that
writes there: commands, log lines, click's messages, tracebacks. Only `screen` may send escape sequences, and
only those that it makes itself.
"""

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hansa.common.values.wording.words import WITHIN_LINES


class Cleaned:
    """A text stream that removes control characters from everything except line breaks."""

    def __init__(self, beneath: Any) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        """Write text without characters that could control a terminal."""
        self.beneath.write(WITHIN_LINES.sub(" ", text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several pieces of text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # click would write to it past us where the locale is ASCII
            raise AttributeError(name)
        return getattr(self.beneath, name)


class _Nowhere(io.TextIOBase):
    """Discards everything: a daemon may write for months."""

    def write(self, text: str) -> int:
        """Discard the text."""
        return len(text)


@contextmanager
def guarded() -> Iterator[None]:
    """Clean what is written to standard output and standard error."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Cleaned(_writable(sys.stdout)), Cleaned(_writable(sys.stderr))
    try:
        yield
    except Exception:
        raise  # the streams stay guarded: the traceback that follows passes them, too
    except BaseException:
        sys.stdout, sys.stderr = streams
        raise
    else:
        sys.stdout, sys.stderr = streams


def _writable(stream: Any) -> Any:
    """Return a stream that takes any text: characters that its encoding lacks are written as escapes."""
    if stream is None:  # the process that started us has closed it
        return _Nowhere()
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")
    return stream


def screen() -> Any:
    """Return a rich console on standard output. Text is taken as it is: without markup, and cleaned.

    rich lays out text before it comes here and counts no columns for control characters, so they are removed.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Screen(Console):
        """Sends the escape sequences that rich makes, but none that are part of a text."""

        def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
            """Yield what is printed."""
            for segment in super().render(*args, **options):
                text, style, control = segment
                yield segment if control else Segment(WITHIN_LINES.sub("", text), style)

    beneath = sys.stdout
    while isinstance(beneath, Cleaned):
        beneath = beneath.beneath
    return Screen(file=beneath, markup=False, emoji=False, highlight=False)
