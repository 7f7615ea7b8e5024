"""Wording for people: counts, hints for mistyped names, and text from elsewhere made safe to print."""

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

# Characters that can control a terminal, forge a line, or be present without being visible: control
# characters (C0, DEL, C1), line and paragraph separators, format characters (bidi marks, zero width, tags),
# variation selectors, blank letters, and halves of surrogate pairs. A test compares this with Unicode's own
# categories.
_HIDDEN = (
    "\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
CONTROL = re.compile(f"[\x00-\x1f{_HIDDEN}]+")
WITHIN_LINES = re.compile(f"[\x00-\x09\x0b-\x1f{_HIDDEN}]+")  # the same, except line breaks


def plain(text: str, most: int = 2000) -> str:
    """Remove control characters: text of others must neither forge log lines nor control a terminal."""
    return CONTROL.sub(" ", text[:most]).strip()


def cleaned(document: object) -> object:
    """Remove control characters from every text in a JSON document of others."""
    if isinstance(document, str):
        return CONTROL.sub(" ", document)
    if isinstance(document, dict):
        return {CONTROL.sub(" ", name): cleaned(value) for name, value in document.items()}
    if isinstance(document, list):
        return [cleaned(value) for value in document]
    return document


@lru_cache(maxsize=4096)
def in_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key by which people sort names: site-2 before site-10."""
    parts = re.split(r"([0-9]+)", name)
    # Numbers of any length: without leading zeros, the longer one is larger.
    numbers = {part: part.lstrip("0") for part in parts if part.isdecimal()}
    return tuple(
        (0, len(numbers[part]), numbers[part]) if part in numbers else (1, 0, part) for part in parts if part
    )


def listed(names: Iterable[str], most: int = 5) -> str:
    """List names, at most a few of them: a, b, c and 37 more."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest


def by_reason(reasons: Mapping[str, str], most: int = 5) -> list[str]:
    """List what happened to each of several sites; sites with the same reason are named together."""
    sites: dict[str, list[str]] = {}
    for site in sorted(reasons, key=in_order):
        sites.setdefault(reasons[site], []).append(site)
    return [f"{listed(names, most)}: {why}" for why, names in sites.items()]


def counted(count: int, noun: str, several: str = "") -> str:
    """Return a number with its noun: 1 update, 2 updates."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def share_of(part: int, total: int | None, drawn: int | None = None) -> str:
    """Return on which part of all examples a model was evaluated, such as `400 of 1000`.

    Without a total it is unknown; with `drawn`, it is that of so many sites, which stand for all.
    """
    of = f" (sample of {counted(drawn, 'site')})" if drawn is not None else ""
    return f"{part} of {'an unknown number of' if total is None else total}{of}"


def suggestion(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return a hint with the nearest known names, or with all of them if none is near and they are few."""
    folded = {name.lower(): name for name in known}
    near = [folded[each] for each in difflib.get_close_matches(word.lower(), folded, n=3, cutoff=0.6)]
    if len(word) > 2:
        near = near or [folded[each] for each in folded if word.lower() in each][:3]
    if near:
        return f" (did you mean {' or '.join(repr(n) for n in near)}?)"
    return (
        f" (known: {', '.join(plain(name) for name in sorted(known))})" if known and len(known) <= 20 else ""
    )
