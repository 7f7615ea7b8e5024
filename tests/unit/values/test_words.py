"""Text of others made safe to print, names in natural order, and lists that name only a few."""

import sys
import unicodedata

import pytest

from hansa.common.values.wording.words import (
    CONTROL,
    WITHIN_LINES,
    by_reason,
    cleaned,
    in_order,
    listed,
    plain,
    suggestion,
)
from tests.hostile_text import NASTY, require_clean

# Unicode's categories of controls, hidden characters, line separators and halves of surrogate pairs.
UNSEEN = "Cc", "Cf", "Cs", "Zl", "Zp"


def test_nothing_that_unicode_calls_control_or_format_is_left() -> None:
    unseen = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in UNSEEN]
    assert len(unseen) > 2000
    assert [character for character in unseen if not CONTROL.fullmatch(character)] == []
    assert [character for character in unseen if not WITHIN_LINES.fullmatch(character)] == ["\n"]


def test_words_of_any_script_are_left_as_they_are() -> None:
    words = "größe, ταχύτητα, скорость, 速度, السرعة, מהירות × … — 😀"
    assert plain(words) == words
    assert WITHIN_LINES.sub(" ", words) == words


def test_text_of_others_is_one_bounded_line() -> None:
    assert plain("  a\r\n\x1b[2Jb\u202e\ud800 ") == "a [2Jb"
    assert plain("x" * 3000, 10) == "x" * 10


def test_a_document_is_cleaned_at_any_depth() -> None:
    document = {"a\x1b": ["b\n", {"c": "d\u200b"}], "n": 1.5, "none": None, "yes": True}
    assert cleaned(document) == {"a ": ["b ", {"c": "d "}], "n": 1.5, "none": None, "yes": True}


def test_site_2_comes_before_site_10() -> None:
    names = ["site-10", "site-2", "b", "site-1", "site", "9", "10", "a2b10", "a2b9", "0", "9" * 5000, "011"]
    ordered = ["0", "9", "10", "011", "9" * 5000, "a2b9", "a2b10", "b", "site", "site-1", "site-2", "site-10"]
    assert sorted(names, key=in_order) == ordered


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more"), (26, "a, b, c and 23 more")],
)
def test_a_long_list_names_a_few(count: int, said: str) -> None:
    assert listed("abcdefghijklmnopqrstuvwxyz"[:count], 3) == said


def test_sites_with_the_same_reason_are_named_together() -> None:
    lost = {"site-10": "slow", "site-2": "slow", "a": "gone"}
    assert by_reason(lost) == ["a: gone", "site-2, site-10: slow"]


def test_names_that_are_suggested_are_plain() -> None:
    require_clean(suggestion("nothing like it", [NASTY, "b"]), "a hint")
