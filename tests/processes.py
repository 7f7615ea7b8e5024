"""Processes that a test has started, directly or not: they inherit a mark in their environment."""

import uuid
from pathlib import Path

NAME = "HANSA_TEST_MARK"


def new_mark() -> dict[str, str]:
    """Return an addition to an environment that no other process has."""
    return {NAME: uuid.uuid4().hex}


def marked(mark: dict[str, str]) -> dict[int, str]:
    """Return the living processes that have a mark, with their commands."""
    wanted = f"{NAME}={mark[NAME]}".encode()
    commands = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                commands[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has just ended, or belongs to somebody else
    return commands
