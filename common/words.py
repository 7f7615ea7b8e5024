"""Hints for people who mistyped a name."""

import difflib


def suggestion(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return a hint with the nearest names, or with all of them if none is near and they are few."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if near:
        return f" (did you mean {' or '.join(repr(n) for n in near)}?)"
    return f" (known: {', '.join(sorted(known))})" if known and len(known) <= 20 else ""
