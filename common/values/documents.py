"""JSON documents: the limits for documents from elsewhere, and how our own are written.

JSON has neither NaN nor infinity, so we write such numbers as null.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

DEPTH = 20  # levels of nested sections and lists; our own documents have seven
VALUES = 100_000  # values in one document; a YAML alias counts as much as what it stands for
TEXT = 10_000  # characters of one text
KEY = 200  # characters of a key
NUMBER = 1 << 63  # whole numbers must be smaller: not every JSON reader accepts larger ones
SHOWN = 4  # steps of a path that are shown if it is too deep

Path = tuple[Any, ...]


def excess(document: object) -> "tuple[Path, str] | None":
    """Return where a value stands that cannot be stored, sent and read again, and why; None if there is none.

    It runs before anything else looks at a document, so it is not recursive and stops at the first fault.
    """
    waiting: list[tuple[Path, object]] = [((), document)]
    seen = 0
    while waiting:
        path, value = waiting.pop()
        seen += 1
        why = f"more than {VALUES} values in one document" if seen > VALUES else _unfit(value, len(path))
        if why:
            return path if len(path) < DEPTH else (*path[:SHOWN], "…"), why
        inner = list(_inner(value))
        for key, _ in inner:
            if why := _unfit_key(key):
                return (*path, str(key)[:40].encode("ascii", "backslashreplace").decode()), f"as a key, {why}"
        waiting += [((*path, key), each) for key, each in reversed(inner)]
    return None


def _inner(value: object) -> Iterable[tuple[Any, object]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _unfit(value: object, depth: int) -> str:
    if isinstance(value, Mapping | list | tuple):
        return f"nested more than {DEPTH} levels deep" if depth >= DEPTH else ""
    if isinstance(value, str):
        return _unfit_text(value, TEXT)
    if isinstance(value, int) and not -NUMBER <= value < NUMBER:
        return "a whole number beyond 64 bits"
    return "" if value is None or isinstance(value, int | float) else _strange(value)


def _unfit_key(key: object) -> str:
    if isinstance(key, str):
        return _unfit_text(key, KEY)
    # JSON turns a number into text that still reads as the number; other keys do not survive that.
    return "" if type(key) is int else _strange(key)


def _strange(value: object) -> str:
    """Explain that JSON has no such value; YAML has dates, sets and bytes, which look like words."""
    return f"a {type(value).__name__}, which JSON does not have; if it is meant as text, put quotes around it"


def _unfit_text(text: str, most: int) -> str:
    if len(text) > most:
        return f"a text of {len(text)} characters; at most {most} are allowed"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "a text with half a surrogate pair, which UTF-8 cannot express"
    return ""


def finite(value: Any) -> Any:
    """Return a JSON value with null in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def flat_fields(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a document by dotted path, without those that are null."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flat_fields(value, f"{above}{name}.")
        elif value is not None:
            yield f"{above}{name}", value


def written(document: object) -> str:
    """Write a document for programs."""
    return escaped(finite(document), indent=2)


def pieces(document: Mapping[str, object], name: str, entries: Iterable[object]) -> Iterator[str]:
    """Write a document piece by piece; its last field is a list that may be too long for the memory."""
    yield f"{written(document)[:-2]},\n  {escaped(name)}: ["
    between = ""
    for entry in entries:
        yield f"{between}\n    " + written(entry).replace("\n", "\n    ")
        between = ","
    yield "\n  ]\n}" if between else "]\n}"


def escaped(document: object, indent: int | None = None) -> str:
    """Write JSON that cannot control a terminal: `json` escapes all control characters except DEL."""
    return json.dumps(document, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")
