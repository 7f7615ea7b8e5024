"""Colours and type of all pictures, as a stylesheet: light, dark, and safe for the colour-blind.

Pictures name classes (`s0` … `s7` for series) and never colours, so one stylesheet on a page serves all of
them, and the reader's system chooses between light and dark. A page may choose itself with `data-theme` on
its root element. The series' colours have a contrast of at least 3 to the ground and can be told apart with
each of the three kinds of colour blindness, which a test computes; the first ones differ most. Pictures name
their lines and areas as well, so that nothing depends on colour alone.
"""

from importlib.resources import files

LIGHT = {
    "ground": "#ffffff",
    "ink": "#1b242e",
    "soft": "#55616e",
    "faint": "#66717d",
    "line": "#e3e7ec",
    "axis": "#a9b3be",
    "heat": "#0b5a91",
    "on-heat": "#ffffff",
    "good": "#0a7a50",
    "warn": "#a85b00",
    "bad": "#c2321d",
}
DARK = {
    "ground": "#171c22",
    "ink": "#e8ecf0",
    "soft": "#a9b4bf",
    "faint": "#8793a0",
    "line": "#2a323b",
    "axis": "#55616e",
    "heat": "#7cc0f2",
    "on-heat": "#0d1216",
    "good": "#4fd09a",
    "warn": "#f0b35c",
    "bad": "#ff8470",
}
SERIES = {
    "light": ("#0b6fae", "#e8590c", "#0b9a66", "#a8458a", "#8a9417", "#3d98ce", "#5d34be", "#60625c"),
    "dark": ("#4a9df0", "#f0965c", "#4fe0a4", "#bf6bb3", "#e6e072", "#c4ecff", "#e6b0ff", "#8f9a84"),
}
COLORS = len(SERIES["light"])  # more could not be told apart


def _variables(colors: dict[str, str], series: tuple[str, ...]) -> str:
    named = colors | {f"s{at}": color for at, color in enumerate(series)}
    return " ".join(f"--{name}: {color};" for name, color in named.items())


_LIGHT = _variables(LIGHT, SERIES["light"])
_DARK = _variables(DARK, SERIES["dark"])
THEMES = f"""\
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
@media print {{ :root {{ color-scheme: light; {_LIGHT} }} }}
:root[data-theme=light] {{ color-scheme: light; {_LIGHT} }}
:root[data-theme=dark] {{ color-scheme: dark; {_DARK} }}"""
PICTURES = files(__package__).joinpath("pictures.css").read_text(encoding="utf-8")
