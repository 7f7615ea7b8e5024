"""Text from elsewhere is text, wherever it stands on a page or in a picture."""

from html.parser import HTMLParser
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.common.drawing.bars import bars, scatter
from hansa.common.drawing.curves import curves
from hansa.common.drawing.markup import html, stylesheet, svg_file, tag
from hansa.common.drawing.matrix import heat_map
from hansa.common.drawing.scale import Axis
from hansa.common.drawing.stacked import stacked
from hansa.common.drawing.strip import Cell, strip
from hansa.common.drawing.style import PICTURES, THEMES
from hansa.common.drawing.thinning import Series

EVIL = "<script>alert(1)</script>"
QUOTES = '"><img src=x onerror=alert(1)>\u202e&amp;'
X = Axis("round", whole=True)


class Reader(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_any_text_is_one_text_and_one_attribute(text: str, value: str) -> None:
    read = Reader(html(tag("p", text, tag("b", value), text, title=value)))
    assert read.tags == ["p", "b"]
    assert [name for name, _ in read.attributes] == ["title"]


def test_control_characters_and_bidi_marks_do_not_reach_a_page() -> None:
    assert html(tag("p", "a\x00b\u202ec")) == "<p>a b c</p>"


@pytest.mark.parametrize("name", [EVIL, QUOTES])
def test_names_of_sites_are_inert_in_every_picture(name: str) -> None:
    other = "other"
    series = [Series(each, [(1, 0.5), (2, 0.7)]) for each in (name, other)]
    rounds = [(at, {name: Cell(1.0, words=name), other: Cell(lost=name)}) for at in range(3)]
    pictures = [
        curves(name, series, X, Axis(name)),
        curves(name, [Series(f"{name}{at}", [(1, at), (2, 1)]) for at in range(20)], X, Axis("loss")),
        stacked(name, [(1, {name: 1, other: 2})], X, [name, other]),
        heat_map(name, [[1, 2], [3, 0]], [name, other], [name, other], down=name, across=name),
        strip(name, rounds, [name, other], X),
        bars(name, [(name, [1, 2])], [name, other]),
        scatter(name, {name: [(1, 2)], other: [(2, 3)]}, X, Axis(name)),
    ]
    for picture in pictures:
        read = Reader(html(picture))
        assert set(read.tags) <= {"svg", "title", "desc", "path", "text", "rect", "circle"}
        assert not [word for word, _ in read.attributes if word.startswith("on") or word in {"src", "href"}]
        assert read.text.count("alert(1)") > 0
        fromstring(svg_file(picture, THEMES, PICTURES))  # it is well-formed as a file of its own


@pytest.mark.parametrize(
    ("word", "value"),
    [("onclick", "alert(1)"), ("href", "javascript:alert(1)"), ("src", "https:evil"), ("href", " data:x")],
)
def test_attributes_that_run_or_fetch_something_are_refused(word: str, value: str) -> None:
    with pytest.raises(ValueError, match=word):
        tag("a", "click", **{word: value})


def test_paths_of_the_page_and_its_server_are_links() -> None:
    assert html(tag("a", "x", href="/jobs/a:b#c")) == '<a href="/jobs/a:b#c">x</a>'
    assert html(tag("a", "x", href="#sites")) == '<a href="#sites">x</a>'


def test_scripts_and_styles_take_no_text() -> None:
    with pytest.raises(ValueError, match="script"):
        tag("script", EVIL)
    with pytest.raises(ValueError, match="stylesheet"):
        stylesheet(f"a {{}} {EVIL}")
    assert html(tag("script", src="/live.js")) == '<script src="/live.js"></script>'
