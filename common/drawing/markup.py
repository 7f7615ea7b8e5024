"""Pages and pictures as trees of elements: text from elsewhere can only ever become text.

Nothing here is put together from strings. Names of sites, reasons and metrics are children or attributes of
elements, and the serialiser of the standard library escapes them when the tree is written. There is no way
to hand in markup as text, and what could run or fetch something is refused.
"""

from collections.abc import Iterable
from copy import copy
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

from hansa.common.values.wording.words import WITHIN_LINES

Child: TypeAlias = "Element | str | int | float | Iterable[Child] | None"
Attribute: TypeAlias = str | float | bool | None
SVG = "http://www.w3.org/2000/svg"
LINKS = ("href", "src", "action", "formaction")


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Element:
    """Return an element with children, which are other elements or text.

    `class_` is the attribute `class`, and `aria_label` is `aria-label`. None and False leave one out.
    """
    element = Element(name)
    for word, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = word.rstrip("_").replace("_", "-")
        text = "" if value is True else _number(value) if isinstance(value, int | float) else clean(value)
        _require_inert(attribute, text)
        element.set(attribute, text)
    if name in ("script", "style") and children:
        raise ValueError(f"<{name}> must be empty: its text would not be escaped; use `stylesheet`")
    add(element, *children)
    return element


def add(element: Element, *children: Child) -> None:
    """Add children to an element."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, Element):
            element.append(child)
        elif isinstance(child, str | int | float):
            text = clean(child) if isinstance(child, str) else _number(child)
            if len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text
        else:
            add(element, *child)


def clean(text: str) -> str:
    """Remove the characters that control a terminal, cannot be seen or turn the direction of text."""
    return WITHIN_LINES.sub(" ", text)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _require_inert(attribute: str, text: str) -> None:
    """Raise if an attribute could run or fetch something: pages need neither scripts nor a network."""
    if attribute.startswith("on"):
        raise ValueError(f"the attribute {attribute} would run a script")
    place, colon, _ = text.partition(":")
    if attribute in LINKS and colon and not set(place) & {"/", "#", "?"}:
        raise ValueError(f"{attribute}: {place}: is not a path of this page or of its server")


def stylesheet(*rules: str) -> Element:
    """Return a <style> element; its rules are our own and never contain text from elsewhere."""
    element, text = Element("style"), "\n".join(rules)
    if "<" in text:
        raise ValueError("a stylesheet has no < in it")
    element.text = text
    return element


def html(*elements: Element) -> str:
    """Write elements as HTML."""
    return "".join(tostring(element, encoding="unicode", method="html") for element in elements)


def page(root: Element) -> str:
    """Write a whole HTML document."""
    return f"<!doctype html>\n{html(root)}\n"


def svg_file(picture: Element, *rules: str) -> str:
    """Write a picture as a file of its own, with its stylesheet in it."""
    root = copy(picture)  # of this element only: its children are shared
    root.set("xmlns", SVG)
    root.insert(0, stylesheet(*rules))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'
