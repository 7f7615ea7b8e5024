"""Links and sessions expire, and forms belong to one visitor."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.process.settings import defaults
from hansa.common.values.errors import Forbidden
from hansa.dashboard.access import LINK, SESSION, Access


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_expires() -> None:
    clock = Clock()
    access = Access(clock)
    link = access.new_link()
    clock.now = LINK
    assert access.open_link(link) is None


def test_a_link_works_once_and_a_new_one_replaces_it() -> None:
    access = Access(Clock())
    first = access.new_link()
    second = access.new_link()
    assert access.open_link(first) is None
    assert access.open_link(second)
    assert access.open_link(second) is None


def test_a_session_expires() -> None:
    clock = Clock()
    access = Access(clock)
    session = access.open_link(access.new_link())
    assert session
    clock.now = SESSION - 1
    assert access.visitor(session)
    clock.now = SESSION
    assert access.visitor(session) is None
    assert access.visitor("somebody's guess") is None


def test_a_form_belongs_to_one_visitor() -> None:
    access = Access(Clock())
    sessions = [access.open_link(access.new_link()) or "" for _ in range(2)]
    first, second = (access.visitor(session) for session in sessions)
    assert first
    assert second
    access.require_token(first, access.token(first))
    for wrong in (access.token(second), "", "ü"):
        with pytest.raises(Forbidden):
            access.require_token(first, wrong)


def test_beyond_this_machine_a_certificate_is_needed() -> None:
    done = CliRunner().invoke(hansa, ["dashboard", "--listen", "0.0.0.0:7380"])
    assert done.exit_code == 2
    assert "--listen-tls" in done.output


def test_settings_of_the_dashboard_add_to_those_of_operators(tmp_path: Path) -> None:
    path = tmp_path / "hansa.toml"
    path.write_text(
        '[operator]\ncontroller = "hub:7300"\n[dashboard]\nlisten = "127.0.0.1:1"\nallow = ["cancel"]\n'
    )
    known = {"controller": "hub:7300", "listen": "127.0.0.1:1", "allow": ["cancel"]}
    assert defaults(str(path))["dashboard"] == known
