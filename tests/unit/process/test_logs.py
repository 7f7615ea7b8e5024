"""Logs: one line per event, whatever its text; JSON for programs; state directories."""

import fcntl
import json
import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from hansa.common.process.logs import JsonFormatter, TextFormatter
from hansa.common.process.state import FORMAT, holder, locked, make_folder
from hansa.common.values.errors import Refused, StoreFailed
from hansa.common.values.wording.words import plain

EVIL = "a\n2026-01-01T00:00:00 INFO    root: all is well\r\x1b[2J\u2028b"


def record(message: str, *args: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            int(EVIL)
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("hansa.x", logging.WARNING, __file__, 1, message, args, info)


def test_text_from_elsewhere_cannot_begin_a_line() -> None:
    lines = TextFormatter().format(record("site said %s", EVIL, error=True)).splitlines()
    assert "a 2026-01-01" in lines[0]
    assert all(line.startswith("    ") for line in lines[1:])
    assert all(line.isprintable() for line in lines)


def test_json_lines_are_one_object_each() -> None:
    line = JsonFormatter().format(record("site said %s", EVIL, error=True))
    assert "\n" not in line
    event = json.loads(line)
    assert (event["level"], event["logger"], event["message"]) == ("warning", "hansa.x", f"site said {EVIL}")
    assert "ValueError" in event["trace"]


def test_plain_text_is_short_and_printable() -> None:
    assert plain(EVIL).isprintable()
    assert len(plain("x" * 10_000)) == 2000


@pytest.mark.parametrize("name", ["controller.lock", "controller.log", "format", "journal.sqlite"])
def test_links_in_a_state_directory_are_refused(tmp_path: Path, name: str) -> None:
    victim, state = tmp_path / "victim", tmp_path / "state"
    victim.write_text("precious")
    state.mkdir()
    (state / name).symlink_to(victim)
    with pytest.raises((Refused, StoreFailed), match="link"):
        with locked(state, "controller"):
            pass
    assert victim.read_text() == "precious"


def test_a_store_on_another_disk_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "store").symlink_to(tmp_path / "big")
    with locked(tmp_path / "state", "controller"):
        pass


def test_a_new_state_directory_is_its_owners_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_what_is_written_to_an_open_state_directory_is_its_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        with locked(tmp_path, "controller"):
            (tmp_path / "journal.sqlite").touch()
        (tmp_path / "afterwards").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"controller.lock": 0o600, "format": 0o600, "journal.sqlite": 0o600, "afterwards": 0o644}


def test_those_who_only_look_are_neither_taken_for_the_holder_nor_in_its_way(tmp_path: Path) -> None:
    with locked(tmp_path, "learner"):
        assert holder(tmp_path, "learner") == os.getpid()
    # The note still has our pid, which may belong to any process by now.
    with (tmp_path / "learner.lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert holder(tmp_path, "learner") is None
        let_go = threading.Timer(0.15, fcntl.flock, (looking, fcntl.LOCK_UN))
        let_go.start()
        with locked(tmp_path, "learner"):
            pass
        let_go.join()


@pytest.mark.parametrize(("age", "number"), [("a newer", FORMAT + 1), ("an older", FORMAT - 1)])
def test_a_state_directory_of_another_format_is_refused_and_not_touched(
    tmp_path: Path, age: str, number: int
) -> None:
    with locked(tmp_path, "controller"):
        pass
    (tmp_path / "format").write_text(f"{number}\n")
    refusal = rf"was written by {age} Hansa \(format {number}, .*; choose another --state"
    with pytest.raises(Refused, match=refusal), locked(tmp_path, "controller"):
        pass
    assert (tmp_path / "format").read_text() == f"{number}\n"
