"""Shortfalls in words: what operators read about sites that contributed little or nothing."""

import pytest

from hansa.common.values.views import JobView, Shortfall
from hansa.common.values.wording.remarks import shortfall_line, shortfall_lines, warning_lines


@pytest.mark.parametrize(
    ("shortfall", "line"),
    [
        (
            Shortfall(site="a", contributed=0, asked=20, failures=20, reason="out of memory", known=20),
            "a contributed no update (20 were asked for): 20 failures, the last: out of memory",
        ),
        (
            Shortfall(site="a", contributed=0, asked=1, failures=1, reason="out of memory", known=1),
            "a contributed no update (one was asked for): out of memory",
        ),
        (
            Shortfall(site="a", contributed=3, asked=3, missed=17, known=20, absence="the site left"),
            "a contributed 3 of the 3 updates it was asked for: it missed 17 of 20 versions (the site left)",
        ),
        (
            Shortfall(site="a", contributed=0, asked=0, unfinished=True),
            "a contributed no update: its first update had not arrived when training stopped",
        ),
    ],
)
def test_a_shortfall_in_words(shortfall: Shortfall, line: str) -> None:
    assert shortfall_line(shortfall) == line


def test_many_sites_make_few_lines() -> None:
    many = tuple(
        Shortfall(site=f"s{n:03}", contributed=0, asked=1, failures=1, reason="no") for n in range(100)
    )
    view = JobView(job="j1", name="n", status="completed", warnings=("weigh: odd",), shortfalls=many)
    lines = list(shortfall_lines(view))
    assert len(lines) == 6
    assert lines[-1].startswith("95 more sites contributed nothing or little: s005, s006,")
    assert "`hansa job show j1 --json`" in lines[-1]
    assert max(map(len, lines)) < 200
    assert warning_lines(view) == ["weigh: odd", *lines]
