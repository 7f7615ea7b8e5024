"""Words for people: counts, hints for mistyped names, and text from elsewhere that is safe to print."""

import difflib
import re

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def plain(text: str, most: int = 2000) -> str:
    """Return text that others wrote without control characters: it can neither forge log lines nor steer a terminal."""
    return CONTROL.sub(" ", text[:most]).strip()


def counted(count: int, noun: str, several: str = "") -> str:
    """Return a number and what it counts: 1 update, 2 updates."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def suggestion(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return a hint with the nearest names, or with all of them if none is near and they are few."""
    folded = {name.lower(): name for name in known}
    near = [folded[each] for each in difflib.get_close_matches(word.lower(), folded, n=3, cutoff=0.6)]
    if len(word) > 2:
        near = near or [folded[each] for each in folded if word.lower() in each][:3]
    if near:
        return f" (did you mean {' or '.join(repr(n) for n in near)}?)"
    return f" (known: {', '.join(sorted(known))})" if known and len(known) <= 20 else ""
