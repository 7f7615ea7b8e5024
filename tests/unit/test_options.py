"""Options of the command line: sizes with units; and how tables are printed."""

import click
import pytest

from hansa.common.ui.options import Size, print_table
from tests.hostile_text import NASTY, require_clean


@pytest.mark.parametrize(
    ("said", "bytes_"),
    [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("1.5g", 3 << 29), ("16 MB", 16 << 20), ("2048K", 2 << 20), ("7", 7)],
)
def test_sizes_are_read_with_and_without_units(said: str, bytes_: int) -> None:
    assert Size().convert(said, None, None) == bytes_


@pytest.mark.parametrize("said", ["", "much", "-1GiB", "1 PiB", "GiB"])
def test_what_is_no_size_is_refused(said: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size: write for example 512MiB"):
        Size().convert(said, None, None)


def test_a_forgotten_unit_is_noticed() -> None:
    with pytest.raises(click.BadParameter, match="'10' is less than 16 MiB"):
        Size(least=16 << 20).convert("10", None, None)
    assert Size(least=16 << 20).convert("16MiB", None, None) == 16 << 20


def test_headings_of_a_table_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("site", f"class {NASTY}"), [("a", "1")], "")
    said = capsys.readouterr().out
    assert said.count("\n") == 2
    require_clean(said, "a table")
