"""Sizes as people write and read them: 512MiB, 2GiB, and 3.9 MB of traffic."""

import re

LARGEST = 1 << 62  # bytes: no machine has more


def parse_size(text: str) -> int:
    """Return a number of bytes, or raise ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B?)", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r:.40} is not a size: write for example 512MiB or 2GiB")
    unit = match[2].upper().rstrip("B").rstrip("I")
    return int(min(float(match[1]) * 1024 ** (" KMGT".find(unit) if unit else 0), LARGEST))


def size_text(size: int) -> str:
    """Write a number of bytes for people."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} bytes"


def amount(count: float) -> str:
    """Write an amount of traffic for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
