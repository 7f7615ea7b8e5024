"""The parts of a report's page: sections, figures with captions, tiles, tables with aligned numbers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, page, stylesheet, tag
from hansa.common.drawing.style import PICTURES, THEMES
from hansa.common.values.errors import InvalidInput

STYLE = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
ROWS = 200  # of a table: a report is read by people, and report.json has everything


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading; one without anything in it is left out."""

    key: str  # its anchor
    title: str
    lead: str = ""  # a sentence below the heading
    parts: Sequence[Element] = field(default_factory=tuple)


def figure(title: str, picture: Element, caption: str = "", wide: bool = False) -> Element:
    """Return a picture with its title above and what must be known about it below."""
    remark = " ".join(filter(None, [caption, picture.get("data-remark", "")]))
    return tag(
        "figure",
        tag("h3", title),
        _scrolling(title, picture) if wide else picture,
        tag("figcaption", remark) if remark else None,
        class_="wide" if wide else None,
    )


def figures(*parts: Element | None) -> list[Element]:
    """Return pictures that stand side by side where there is room; nothing if there are none."""
    known = [part for part in parts if part is not None]
    return [tag("div", known, class_="figures")] if known else []


def tile(label: str, value: str, about: str = "", spark: Element | None = None) -> Element:
    """Return a number that matters, with what it is."""
    return tag(
        "div",
        tag("dt", label),
        tag("dd", tag("strong", value), spark),
        tag("dd", about, class_="about") if about else None,
        class_="tile",
    )


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Child]], words: Iterable[int] = (0,), caption: str = ""
) -> Element:
    """Return a table; all columns but those with `words` have numbers, which stand below one another.

    Of a long table the first rows are shown, and a last line says how many there are.
    """
    text = set(words)
    kinds = [None if at in text else "number" for at in range(len(columns))]
    head = tag("tr", (tag("th", name, scope="col", class_=kinds[at]) for at, name in enumerate(columns)))
    body = [
        tag("tr", (tag("td", cell, class_=kinds[at]) for at, cell in enumerate(row))) for row in rows[:ROWS]
    ]
    rest = f"The first {ROWS} of {len(rows):,}; report.json has all." if len(rows) > ROWS else ""
    notes = " ".join(filter(None, [caption, rest]))
    title = f"Table of {', '.join(filter(None, columns))}"
    return _scrolling(
        title, tag("table", tag("caption", notes) if notes else None, tag("thead", head), tag("tbody", body))
    )


def _scrolling(title: str, part: Element) -> Element:
    """Return a part that may be wider than a phone; it scrolls by itself, also with the keyboard."""
    return tag("div", part, class_="scroll", role="region", aria_label=title, tabindex="0")


def more(summary: str, *parts: Element) -> Element:
    """Return something that is folded away until somebody wants it."""
    return tag("details", tag("summary", summary), *parts)


def notice(kind: str, title: str, *lines: Child) -> Element:
    """Return a remark that should not be missed: `warn`, `bad` or `plain`."""
    return tag("aside", tag("h3", title), *(tag("p", line) for line in lines), class_=f"notice {kind}")


def worded(text: str) -> Iterator[Child]:
    """Yield a text of ours, in which commands stand between backticks."""
    for at, part in enumerate(text.split("`")):
        yield tag("code", part) if at % 2 else part


def facts(pairs: Iterable[tuple[str, Child]]) -> Element:
    """Return a list of names and what they stand for."""
    return tag("dl", ((tag("dt", name), tag("dd", value)) for name, value in pairs), class_="facts")


def whole_page(title: str, head: Sequence[Element], sections: Sequence[Section], foot: str) -> str:
    """Write a page: its head, its sections with a list of them, and a last line."""
    shown = [section for section in sections if section.parts]
    contents = tag(
        "nav",
        tag("ul", (tag("li", tag("a", each.title, href=f"#{each.key}")) for each in shown)),
        aria_label="Contents",
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag("header", *head),
        contents if len(shown) > 2 else None,
        tag("main", map(drawn, shown), id="main"),
        tag("footer", tag("p", worded(foot))),
    )
    return page(
        tag(
            "html",
            tag(
                "head",
                tag("meta", charset="utf-8"),
                tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
                tag("meta", name="referrer", content="no-referrer"),
                tag(
                    "meta",
                    http_equiv="Content-Security-Policy",
                    content="default-src 'none'; style-src 'unsafe-inline'",
                ),
                tag("title", title),
                stylesheet(THEMES, PICTURES, STYLE),
            ),
            body,
            lang="en",
        )
    )


def write_page(file: Path, text: str) -> None:
    """Write a page to a file that somebody named."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be written: {error.strerror}") from None


def drawn(section: Section) -> Element:
    """Return a section as it stands on a page."""
    lead = tag("p", section.lead, class_="lead") if section.lead else None
    return tag("section", tag("h2", section.title, id=section.key), lead, *section.parts)
