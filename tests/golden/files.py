"""Golden files: reading, writing and comparing JSON with one short entry per line."""

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CLOSE, NEAR_ZERO = 1e-3, 1e-5  # relative and absolute tolerance for numbers that depend on the machine
WIDTH = 240  # characters: what fits is written on one line


def read(name: str) -> Any:
    """Return the contents of a golden file."""
    return json.loads((HERE / name).read_text())


def write(name: str, value: Any) -> Path:
    """Write a golden file and return its path."""
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(_text(value, 0) + "\n")
    return path


def _text(value: Any, depth: int) -> str:
    """Return JSON; values that are too long for a line are broken into entries, at most six levels deep."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) < WIDTH - depth or depth > 5 or not isinstance(value, dict | list):
        return line
    room, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        entries = [
            f"{json.dumps(key, ensure_ascii=False)}: {_text(each, depth + 1)}" for key, each in value.items()
        ]
        return "{" + room + f",{room}".join(entries) + end + "}"
    return "[" + room + f",{room}".join(_text(each, depth + 1) for each in value) + end + "]"


def plain(value: Any) -> Any:
    """Return a value as it comes back from a golden file."""
    return json.loads(json.dumps(value))


def differences(golden: Any, now: Any, close: bool = False, at: str = "") -> list[str]:
    """Say where a value differs from the golden one; with `close`, numbers may differ a little."""
    if isinstance(golden, dict) and isinstance(now, dict):
        missing = [f"{at}/{key}: only in the golden file" for key in golden if key not in now]
        more = [
            f"{at}/{key}: not in the golden file, now {now[key]!r:.200}" for key in now if key not in golden
        ]
        both = [key for key in golden if key in now]
        return [
            *missing,
            *more,
            *(line for k in both for line in differences(golden[k], now[k], close, f"{at}/{k}")),
        ]
    if isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        pairs = enumerate(zip(golden, now, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, close, f"{at}/{i}")]
    if close and isinstance(golden, float) and isinstance(now, float):
        if math.isclose(golden, now, rel_tol=CLOSE, abs_tol=NEAR_ZERO):
            return []
    elif golden == now:
        return []
    return [f"{at}: expected {golden!r:.300}, got {now!r:.300}"]
