"""Options of the command line: sizes with units, and numbers; and how tables are printed."""

import click
import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.ui.options import Measure, Size, print_table
from hansa.common.values.wording.sizes import LARGEST
from tests.hostile_text import NASTY, require_clean


@pytest.mark.parametrize(
    ("said", "bytes_"),
    [
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("1.5g", 3 << 29),
        ("16 MB", 16 << 20),
        ("2048K", 2 << 20),
        ("7", 7),
    ],
)
def test_sizes_are_read_with_and_without_units(said: str, bytes_: int) -> None:
    assert Size().convert(said, None, None) == bytes_


@pytest.mark.parametrize("said", ["", "much", "-1GiB", "1 PiB", "GiB"])
def test_what_is_not_a_size_is_refused(said: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size: write for example 512MiB"):
        Size().convert(said, None, None)


def test_a_forgotten_unit_is_noticed() -> None:
    with pytest.raises(click.BadParameter, match="'10' is less than 16 MiB"):
        Size(least=16 << 20).convert("10", None, None)
    assert Size(least=16 << 20).convert("16MiB", None, None) == 16 << 20


def test_a_size_beyond_all_numbers_is_the_largest() -> None:
    assert Size().convert("9" * 400, None, None) == LARGEST


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "1e999", "NaN"])
def test_what_is_not_a_finite_number_is_refused(said: str) -> None:
    with pytest.raises(click.BadParameter):
        Measure(0).convert(said, None, None)


@pytest.mark.parametrize("said", ["nan", "inf", "1e300"])
@pytest.mark.parametrize(
    "words",
    [
        ("controller", "start", "--heartbeat"),
        ("controller", "start", "--grace"),
        ("learner", "start", "--drain"),
        ("learner", "start", "--slow"),
        ("pki", "issue", "--days"),
    ],
)
def test_daemons_do_not_accept_waits_that_no_clock_can_measure(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(hansa, [*words, said])
    assert done.exit_code == 2, done.output
    assert f"Invalid value for '{words[-1]}'" in done.stderr


def test_headings_of_a_table_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("site", f"class {NASTY}"), [("a", "1")], "")
    said = capsys.readouterr().out
    assert said.count("\n") == 2
    require_clean(said, "a table")
