"""Pages for those who are not in: after a link, without one, and when something is wrong."""

from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, tag
from hansa.dashboard.pages.layout import logo


def entered() -> Element:
    """Return the page behind a link: it leads on, so that the session's cookie is sent from our own page."""
    return _small("Welcome", tag("p", tag("a", "Open the dashboard", href="/", class_="strong")), onward=True)


def trouble(title: str, why: str, back: bool = True) -> Element:
    """Return the page for what cannot be shown, or not to everybody."""
    home = tag("p", tag("a", "Back to the fleet", href="/")) if back else None
    return _small(title, tag("p", why), home)


def _small(title: str, *content: Child, onward: bool = False) -> Element:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content="0; url=/") if onward else None,
        tag("title", f"{title} · Hansa"),
        tag("link", rel="icon", type="image/svg+xml", href="/assets/icon.svg"),
        tag("link", rel="stylesheet", href="/assets/dashboard.css"),
    )
    main = tag("main", logo(), tag("h1", title), content, class_="small", id="content")
    return tag("html", head, tag("body", main), lang="en")
