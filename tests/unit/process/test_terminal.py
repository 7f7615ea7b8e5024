"""What reaches a terminal: text without control characters, and the escape sequences that rich makes."""

import io
import sys

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from hansa.common.cli import hansa
from hansa.common.process.terminal import Cleaned, guarded, screen
from tests.hostile_text import NASTY, require_clean, require_own_sequences


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_whatever_is_written_to_the_standard_streams_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    held = sys.stdout, sys.stderr
    with guarded():
        click.echo(f"one {NASTY}")
        click.echo(f"two {NASTY}", err=True)
        sys.stdout.writelines(["three\x1b\n", "four\n"])
    assert (sys.stdout, sys.stderr) == held
    said = capsys.readouterr()
    assert said.out.startswith("one w\n")
    assert said.out.endswith("three \nfour\n")
    assert said.err.startswith("two w\n")
    for text in said:
        require_clean(text.replace("FORGED", ""), "a stream")


def test_the_streams_stay_guarded_for_the_traceback_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    beneath = io.StringIO()
    monkeypatch.setattr(sys, "stderr", beneath)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(ZeroDivisionError), guarded():
        raise ZeroDivisionError
    sys.stderr.write("Traceback: \x1b[2J\n")
    assert beneath.getvalue() == "Traceback:  [2J\n"


def test_a_table_on_a_terminal_shows_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Tty()
    monkeypatch.setattr(sys, "stdout", Cleaned(terminal))
    monkeypatch.setenv("TERM", "xterm")
    table = Table("head")
    table.add_row("[red]no markup[/red] :smile:")
    table.add_row("[/] unbalanced \x1b]0;owned\x07")
    screen().print(table)
    shown = terminal.getvalue()
    assert "[red]no markup[/red] :smile:" in shown
    assert "\x1b[" in shown  # rich's own
    require_own_sequences(shown, "a table")


def test_what_a_person_types_is_cleaned_where_it_is_repeated() -> None:
    said = CliRunner().invoke(hansa, ["job", "show", "--controller", "\x1b]0;x\x07:\u202e1"])
    assert said.exit_code == 2
    assert "]0;x" in said.output
    require_clean(said.output, "a usage error")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_streams_are_guarded_whatever_their_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str
) -> None:
    """click bypasses an ASCII stream to write UTF-8, and Latin-1 has no dash."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, errors) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with guarded():
        click.echo(f"a — dash {NASTY}", color=True)
        click.echo(f"a — dash {NASTY}", err=True, color=True)
        screen().print("a — dash")
    for stream in (out, err):
        stream.flush()
        written = stream.buffer
        assert isinstance(written, io.BytesIO)
        said = written.getvalue().decode(encoding)
        assert said.startswith("a — dash" if encoding == "utf-8" else "a \\u2014 dash")
        require_clean(said.replace("FORGED", ""), "a stream")


def test_writing_to_a_closed_stream_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with guarded():
        click.echo("nobody reads it")
        click.echo("nobody reads it", err=True)
        assert not sys.stdout.isatty()
