"""Text that tries to control a terminal, for every string of every message, and checks of what is printed."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

SEQUENCES = (
    "\x1b]0;owned\x07\x1b[5;41mred\x1b[2J\x9b31m[link=http://evil]x[/link]\u202eback\u2066\u200bwide\ufeff"
)
FORGED = "FORGED 2026-01-01 ERROR"
EVERY = "".join(
    map(chr, (*range(1, 0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2060, 0x2070)))
)
NASTY = f"w\n{FORGED}\r{FORGED}\x85{FORGED}\u2028{SEQUENCES}{EVERY}../../w"
UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
M = TypeVar("M", bound=Message)
Path = tuple[FieldDescriptor, ...]


def string_fields(kind: Descriptor, within: Path = ()) -> Iterator[Path]:
    """Yield the path to every string in a kind of message, including keys of maps."""
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (*within, field)
        elif field.message_type is not None:
            yield from string_fields(field.message_type, (*within, field))


def with_text(base: M, path: Path, text: str) -> M:
    """Return a copy of a message with a text in one of its fields."""
    made = type(base)()
    made.CopyFrom(base)
    at: Any = made
    *way, last = path
    for field in way:
        held = getattr(at, field.name)
        assert field.message_type is not None
        if field.message_type.GetOptions().map_entry:
            held[text] = 1.0
            return made
        at = (held[0] if len(held) else held.add()) if field.is_repeated else held
    if last.is_repeated:
        getattr(at, last.name).append(text)
    else:
        setattr(at, last.name, text)
    return made


def name_of(path: Path) -> str:
    return ".".join(field.name for field in path)


def require_clean(text: str, where: str) -> None:
    """Fail if something in an output could control a terminal or looks like a separate line."""
    found = UNSAFE.search(text)
    assert found is None, f"{where}: {found[0]!r} in {text[max(0, found.start() - 80) : found.end() + 80]!r}"
    assert not any(line.startswith(FORGED) for line in text.split("\n")), (
        f"{where}: a forged line in {text!r:.2000}"
    )


def on_a_terminal(*arguments: str, **env: str) -> str:
    """Run a hansa command on its own terminal and return its output, including escape sequences."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "hansa", *arguments]
    settings = os.environ | {"HANSA_CONFIG": "", "TERM": "xterm", "COLUMNS": "250"} | env
    process = subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=settings)
    os.close(theirs)
    seen = b""
    try:
        while chunk := _read(ours):
            seen += chunk
    finally:
        process.kill()  # it has closed its terminal
        process.wait()
        os.close(ours)
    return seen.decode()


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 1 << 16)
    except OSError:  # the end of a terminal's output
        return b""


def require_own_sequences(text: str, where: str) -> None:
    """Fail if a terminal received anything but rich's own styles and cursor moves."""
    own = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[hl]|[0-9]*A|2K|1G)|\r")
    assert "\x1b[5;41m" not in text, where
    require_clean(own.sub("", text), where)
