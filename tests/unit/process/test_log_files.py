"""The last lines of a log, and what follows, also over a rotation."""

import re
from pathlib import Path

import pytest

from hansa.common.process.log_files import follow, last_lines
from hansa.common.values.errors import NotFound


class Stop(Exception):
    """The reader would wait now, for ever."""


def test_the_last_lines_may_be_in_the_file_that_was_rotated(tmp_path: Path) -> None:
    log = tmp_path / "learner.log"
    (tmp_path / "learner.log.1").write_text("one\ntwo\nthree\n")
    log.write_text("four\nfive\n")
    assert last_lines(log, 1) == ["five"]
    assert last_lines(log, 4) == ["two", "three", "four", "five"]
    assert last_lines(log, 9) == ["one", "two", "three", "four", "five"]
    assert last_lines(log, 0) == []


def test_bytes_that_are_not_text_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "learner.log"
    log.write_bytes(b"a\xff\nb\n")
    assert last_lines(log, 2) == ["a\ufffd", "b"]


def test_without_a_log_it_is_said_where_the_log_may_be(tmp_path: Path) -> None:
    with pytest.raises(
        NotFound, match=re.escape(f"there is no log {tmp_path / 'learner.log'}: only --daemon")
    ):
        last_lines(tmp_path / "learner.log", 10)


def test_what_is_appended_follows_over_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "learner.log"
    log.write_text("old\n")
    todo = ["append", "rotate", "append again", "stop"]

    def pause(_: float) -> None:
        match todo.pop(0):
            case "append":
                with log.open("a") as file:
                    file.write("new\n")
            case "rotate":
                with log.open("a") as file:
                    file.write("last\n")
                log.rename(tmp_path / "learner.log.1")
                log.write_text("first\n")
            case "append again":
                with log.open("a") as file:
                    file.write("second\n")
            case _:
                raise Stop

    seen: list[str] = []
    with pytest.raises(Stop):
        seen.extend(follow(log, 1, pause))
    assert "".join(seen) == "old\nnew\nlast\nfirst\nsecond\n"
