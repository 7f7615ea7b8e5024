"""What all pages have in common: the frame, the navigation, and small pieces."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, tag
from hansa.common.values.wording.words import in_order

PLACES = (("/", "Fleet"), ("/jobs", "Jobs"), ("/compare", "Compare"), ("/audit", "Audit"))
THEMES = (("auto", "Auto"), ("light", "Light"), ("dark", "Dark"))
MARKS = {  # states with a mark, so that nothing depends on colour alone
    **dict.fromkeys(("completed", "done", "attending", "live"), ("good", "✓")),
    **dict.fromkeys(("running", "training"), ("busy", "▶")),
    **dict.fromkeys(("waiting", "idle"), ("calm", "○")),
    **dict.fromkeys(("failed", "lost"), ("bad", "✕")),
    **dict.fromkeys(("cancelled", "away"), ("warn", "■")),
}
WORDS = {"attending": "connected"}


@dataclass(frozen=True)
class Frame:
    """What the frame of a page shows."""

    controller: str
    visitor: str = ""
    theme: str = "auto"
    stream: str = ""  # where the page's live parts come from
    lost: str = ""  # why the controller cannot be reached


def page(title: str, place: str, frame: Frame, *content: Child) -> Element:
    """Return a whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · Hansa"),
        tag("link", rel="icon", type="image/svg+xml", href="/assets/icon.svg"),
        tag("link", rel="stylesheet", href="/assets/dashboard.css"),
        tag("script", src="/assets/dashboard.js", defer=True),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _header(place, frame),
        tag("main", content, id="content", tabindex=-1),
        _footer(frame),
        data_stream=frame.stream or None,
    )
    return tag("html", head, body, lang="en", data_theme=None if frame.theme == "auto" else frame.theme)


def _header(place: str, frame: Frame) -> Element:
    links = (
        tag("li", tag("a", name, href=path, aria_current="page" if path == place else None))
        for path, name in PLACES
    )
    return tag(
        "header",
        tag("a", logo(), tag("span", "Hansa"), href="/", class_="brand", aria_label="Hansa, fleet"),
        tag("nav", tag("ul", links), aria_label="Pages"),
        connection(frame.lost, live=bool(frame.stream)),
    )


def connection(lost: str, live: bool = True) -> Element:
    """Return the line that says whether the page is live; the script writes into it, too."""
    words = "reconnecting to the controller …" if lost else ("live" if live else "")
    return tag(
        "p",
        words,
        id="connection",
        role="status",
        class_="connection" + (" lost" if lost else ""),
        title=lost or None,
    )


def _footer(frame: Frame) -> Element:
    buttons = (
        tag("button", name, name="theme", value=value, aria_pressed=str(frame.theme == value).lower())
        for value, name in THEMES
    )
    return tag(
        "footer",
        tag(
            "p", "controller ", tag("code", frame.controller), f" · {frame.visitor}" if frame.visitor else ""
        ),
        tag(
            "form",
            buttons,
            method="post",
            action="/theme",
            class_="themes",
            role="group",
            aria_label="Colours",
        ),
    )


def logo() -> Element:
    """Return the mark: a cog with its sail set."""
    return tag(
        "svg",
        tag("path", d="M4 21h24l-4 7H8z", class_="hull"),
        tag("path", d="M15 3v15H6C7 11 10 6 15 3z", class_="sail"),
        tag("path", d="M18 6c5 2 8 6 8 12h-8z", class_="sail"),
        viewBox="0 0 32 32",
        class_="logo",
        aria_hidden="true",
    )


def live(name: str, *children: Child) -> Element:
    """Return a part of a page that the script replaces when it changes."""
    return tag("div", children, id=f"live-{name}", data_live=name)


def card(title: str, *children: Child, about: str = "", class_: str = "") -> Element:
    """Return a part of a page with a heading."""
    heading = tag("h2", title)
    words = tag("p", about, class_="soft") if about else None
    return tag("section", heading, words, children, class_=f"card {class_}".strip())


def badge(state: str, words: str = "") -> Element:
    """Return a state, with a mark and a colour."""
    colour, mark = MARKS.get(state, ("calm", "○"))
    words = words or WORDS.get(state, state)
    return tag("span", tag("span", mark, aria_hidden="true"), f" {words}", class_=f"badge {colour}")


def tiles(numbers: Iterable[tuple[str, Child, str]]) -> Element:
    """Return large numbers, each with its name and a remark."""
    return tag(
        "dl",
        (
            tag(
                "div",
                tag("dt", name),
                tag("dd", value, tag("small", remark) if remark else None),
            )
            for name, value, remark in numbers
        ),
        class_="tiles",
    )


def bar(done: float, of: float, words: str) -> Element:
    """Return a progress bar."""
    return tag("progress", words, max=max(of, 1), value=min(done, max(of, 1)), aria_label=words)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    caption: str,
    empty: str,
    numeric: Sequence[str] = (),
    long: Sequence[str] = (),
) -> Element:
    """Return a table, which scrolls if it is too wide.

    Columns that are named in `numeric` hold numbers, those in `long` many words.
    """
    kinds = dict.fromkeys(numeric, "number") | dict.fromkeys(long, "long")
    body = [
        tag(
            "tr",
            (
                tag(
                    "td" if at else "th",
                    cell,
                    class_=kinds.get(name),
                    scope=None if at else "row",
                )
                for at, (name, cell) in enumerate(zip(columns, row, strict=True))
            ),
        )
        for row in rows
    ]
    if not body:
        return tag("p", empty, class_="empty")
    head = (tag("th", name, scope="col", class_=kinds.get(name)) for name in columns)
    whole = tag(
        "table",
        tag("caption", caption, class_="hidden"),
        tag("thead", tag("tr", head)),
        tag("tbody", body),
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def moment(at: str) -> Element:
    """Return a time, which the script shows in the reader's own zone."""
    shown = at.replace("T", " ").removesuffix("+00:00")
    return tag("time", f"{shown} UTC", datetime=at) if is_moment(at) else tag("span", at or "–")


def is_moment(at: str) -> bool:
    """Whether a text is a time."""
    try:
        datetime.fromisoformat(at)
    except ValueError:
        return False
    return True


def span_of(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def job_link(job: str, name: str, current: bool = False) -> Element:
    """Return a link to a job."""
    return tag("a", name or job, href=f"/jobs/{job}", aria_current="true" if current else None)


def search(words: str, label: str, action: str) -> Element:
    """Return a form that narrows a list down."""
    return tag(
        "form",
        tag("label", label, for_="q", class_="hidden"),
        tag("input", type="search", id="q", name="q", value=words, placeholder=label, autocomplete="off"),
        tag("button", "Find"),
        method="get",
        action=action,
        role="search",
        class_="search",
    )


def ordered(names: Iterable[str]) -> list[str]:
    """Return names as people sort them."""
    return sorted(names, key=in_order)


def settings(values: Mapping[str, Child]) -> Element:
    """Return names with their values."""
    rows = (tag("div", tag("dt", name), tag("dd", value)) for name, value in values.items())
    return tag("dl", rows, class_="settings")
