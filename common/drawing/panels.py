"""Several pictures side by side in one, with a heading above: a file of its own for slides and papers."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import tag
from hansa.common.drawing.plot import HEIGHT, WIDTH, picture, text

MARGIN, HEAD, CAPTION, GAP = 20.0, 58.0, 20.0, 28.0


def panels(title: str, about: str, parts: Sequence[tuple[str, Element]], across: int = 3) -> Element:
    """Return pictures of the usual size in rows of at most `across`, each with a caption above."""
    across = 2 if len(parts) == 4 else min(across, max(len(parts), 1))
    down = -(-len(parts) // across)
    caption = CAPTION if any(words for words, _ in parts) else 0.0
    width = 2 * MARGIN + across * WIDTH + (across - 1) * GAP
    height = HEAD + down * (HEIGHT + caption + GAP)
    drawn: list[Element] = [
        tag("rect", width=width, height=height, class_="ground"),
        text(MARGIN, 26, title, "heading"),
        text(MARGIN, 45, about, "about"),
    ]
    for at, (words, part) in enumerate(parts):
        x = MARGIN + at % across * (WIDTH + GAP)
        y = HEAD + at // across * (HEIGHT + caption + GAP)
        if words:
            drawn.append(text(x + 2, y + 11, words, "value"))
        for name, value in {"x": x, "y": y + caption, "width": WIDTH, "height": HEIGHT}.items():
            part.set(name, f"{value:g}")
        drawn.append(part)
    return picture(title, about, width, height, drawn)
