"""The last lines of a daemon's log: clean, without secrets and paths, and never those of apps."""

import logging
from collections.abc import Iterator

import pytest

from hansa.common.site.log_tail import ALL, KEPT, LogTail, shareable
from hansa.common.site.policy import FREE, Policy
from hansa.common.values.errors import Forbidden


@pytest.fixture
def tail() -> Iterator[LogTail]:
    made = LogTail()
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the data of /srv/patients/smith.npz are loaded", "the data of [path] are loaded"),
        ("reading 'My Patients/smith.npz' failed", "reading [path] failed"),
        (r"C:\data\smith.npz is damaged", "[path] is damaged"),
        ("store redis://user:hunter2@10.0.0.1/0", "store [path]"),
        ("HANSA_TOKEN=abc password: hunter2!", "HANSA_TOKEN=[hidden] password=[hidden]"),
        ("Authorization: Bearer abc, sent", "Authorization=[hidden] sent"),
        ("with bearer abc", "with bearer [hidden]"),
        ("api_key='a b c'", "api_key=[hidden]"),
        ("settings {'db_password': 'hunter2', 'n': 3}", "settings {'db_password=[hidden], 'n': 3}"),
        ('{"token": "abc"}', '{"token=[hidden]}'),
        ("digest " + "ab12" * 16, "digest [hidden]"),
        ("a\nforged\x1b[31m line", "a forged [31m line"),
        ("round 7: loss 0.5 on 300 examples", "round 7: loss 0.5 on 300 examples"),
    ],
)
def test_paths_secrets_and_control_characters_are_removed(said: str, shown: str) -> None:
    assert shareable(said) == shown


def test_only_hansas_own_lines_are_kept_and_no_tracebacks(tail: LogTail) -> None:
    logging.getLogger("hansa.learner").warning("task %s failed", "j1-3", exc_info=KeyError("Mrs Smith"))
    logging.getLogger("my.app").error("patient Smith")
    (line,) = tail.last(10)
    assert line.endswith("WARNING task j1-3 failed (KeyError)")


def test_an_answer_is_bounded_and_has_the_newest_lines(tail: LogTail) -> None:
    for number in range(KEPT + 100):
        logging.getLogger("hansa.learner").warning("%d %s", number, "word " * 50)
    lines = tail.last(KEPT)
    assert sum(len(line.encode()) for line in lines) < ALL
    assert lines[-1].split()[2] == str(KEPT + 99)
    assert [line.split()[2] for line in tail.last(2)] == [str(KEPT + 98), str(KEPT + 99)]


def test_the_log_is_shown_only_if_the_owner_says_so_and_to_whom() -> None:
    with pytest.raises(Forbidden, match="does not show its logs"):
        FREE.require_readable("alice")
    Policy(logs=10).require_readable("alice")
    with pytest.raises(Forbidden, match="operator bob"):
        Policy(logs=10, operators=("alice",)).require_readable("bob")
