"""A partition as a picture: sites × classes as a coloured matrix next to stacked bars."""

from pathlib import Path
from typing import Any

import numpy as np

from hansa.common.data.shards import Picture
from hansa.common.values.errors import InvalidInput

INK, FAINT, PAPER = "#1f2933", "#8a94a0", "#ffffff"
ENDINGS = (".png", ".svg", ".pdf")
# Twenty colours that can be told apart on paper and on screens: Tableau's ten, then their light forms.
COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2",
    "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
    "#a0cbe8", "#ffbe7d", "#8cd17d", "#ff9d9a", "#499894",
    "#f1ce63", "#d4a6c8", "#d37295", "#d7b5a6", "#79706e",
)  # fmt: skip


def draw(picture: Picture, path: Path) -> None:
    """Draw a partition to a PNG, SVG or PDF file."""
    if path.suffix.lower() not in ENDINGS:
        raise InvalidInput(f"{path}: the name of a picture must end in {', '.join(ENDINGS)}")
    try:
        import matplotlib as mpl
    except ImportError:
        raise InvalidInput("drawing needs matplotlib: pip install 'hansa[data]'") from None
    mpl.use("Agg")
    from matplotlib.figure import Figure

    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "svg.hashsalt": "hansa",
        "svg.fonttype": "none",
    }
    with mpl.rc_context(style):
        row = 0.2 if len(picture.sites) <= 40 else 0.125
        height = min(max(2.9, 1.7 + row * len(picture.sites)), 40)
        width = min(max(9.6, 7.4 + 0.22 * len(picture.classes)), 17)
        margin = max(map(len, picture.sites)) * (0.075 if len(picture.sites) <= 40 else 0.062)
        legend = 0.5 + 0.075 * max(map(len, picture.classes))
        width += max(0.0, margin - 0.7) + max(0.0, legend - 1.25)
        figure = Figure(figsize=(width, height), facecolor=PAPER)
        grid = figure.add_gridspec(
            1,
            2,
            width_ratios=(1.1, 1),
            wspace=0.05,
            left=(0.42 + margin) / width,
            right=1 - legend / width,
            top=1 - 0.86 / height,
            bottom=(0.8 if _slanted(picture.classes) else 0.4) / height,
        )
        left = figure.add_subplot(grid[0])
        _matrix(left, picture)
        _bars(figure.add_subplot(grid[1], sharey=left), picture)
        _caption(figure, picture, height, width)
        try:
            metadata = {"Date": None} if path.suffix.lower() in (".svg", ".pdf") else None
            figure.savefig(
                path, dpi=160, metadata=metadata if path.suffix.lower() != ".pdf" else {"CreationDate": None}
            )
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from None


def _caption(figure: Any, picture: Picture, height: float, width: float) -> None:
    measures = picture.measures
    facts = (
        f"{measures.sites} sites, {measures.examples:,} examples"
        f" ({measures.least:,} to {measures.most:,} each)  ·  "
        f"C-score {measures.c_score:.2f}  ·  mean divergence {measures.divergence:.2f} bit"
    )
    start = 0.3 / width
    figure.text(start, 1 - 0.2 / height, picture.title, color=INK, fontsize=11, fontweight="bold", va="top")
    figure.text(start, 1 - 0.46 / height, facts, color=FAINT, fontsize=9, va="top")


def _matrix(axes: Any, picture: Picture) -> None:
    """Draw each site's shares of the classes: pale is little, dark is much, white is none."""
    import matplotlib as mpl

    totals = np.maximum(picture.matrix.sum(axis=1, keepdims=True), 1)
    shares = np.ma.masked_equal(picture.matrix / totals, 0)
    shades = mpl.colors.LinearSegmentedColormap.from_list("sea", ["#eaf3f8", "#7fb8d4", "#2a6f97", "#0b2f4a"])
    colors = shades.with_extremes(bad="#f6f6f4")
    axes.imshow(
        shares,
        aspect="auto",
        cmap=colors,
        vmin=0,
        vmax=max(float(shares.max()), 1e-9),
        interpolation="nearest",
    )
    sites, classes = picture.matrix.shape
    axes.set_xticks(np.arange(-0.5, classes), minor=True)
    axes.set_yticks(np.arange(-0.5, sites), minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=1.2 if sites <= 40 else 0.5)
    axes.tick_params(which="both", length=0, colors=INK, labelsize=8 if sites <= 40 else 6.5)
    if sites * classes <= 200:
        for (site, label), count in np.ndenumerate(picture.matrix):
            if count:
                dark = shares[site, label] > 0.45 * float(shares.max())
                axes.text(
                    label,
                    site,
                    f"{count:,}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=PAPER if dark else INK,
                )
    _names(axes.set_yticks, picture.sites, 250, rotation=0)
    _names(axes.set_xticks, picture.classes, 40, rotation=40 if _slanted(picture.classes) else 0)
    darkest = f"share of each class at a site (blank: none, darkest: {float(shares.max()):.0%})"
    axes.set_title(darkest, loc="left", color=INK, fontsize=9)
    _bare(axes)


def _slanted(names: tuple[str, ...]) -> bool:
    """Whether names are too long to stand next to each other."""
    longest = max(map(len, names))
    return longest > 3 and longest * len(names) > 45


def _names(put: Any, names: tuple[str, ...], most: int, rotation: float) -> None:
    """Label an axis with names; only every n-th if there are many."""
    every = -(-len(names) // most)
    shown = range(0, len(names), every)
    align = {"ha": "right", "rotation_mode": "anchor"} if rotation else {}
    put(
        list(shown),
        [names[at] if names[at].strip() else repr(names[at]) for at in shown],
        rotation=rotation,
        **align,
    )


def _bars(axes: Any, picture: Picture) -> None:
    """Draw how many examples of each class each site has."""
    sites, classes = picture.matrix.shape
    start = np.zeros(sites)
    colored = classes <= len(COLORS)  # more could not be told apart
    columns = picture.matrix.T if colored else picture.matrix.sum(axis=1)[None]
    for held, color in zip(columns, COLORS, strict=False):
        axes.barh(
            np.arange(sites), held, left=start, height=0.82 if sites <= 40 else 0.92, color=color, linewidth=0
        )
        start += held
    axes.tick_params(axis="y", which="both", length=0, labelleft=False)
    axes.tick_params(axis="x", length=3, colors=FAINT, labelsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(_ticks())
    axes.set_xlim(0, float(start.max()) * 1.02 or 1)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title("examples, by class" if colored else "examples", loc="left", color=INK, fontsize=9)
    _bare(axes)
    if colored:
        _legend(axes, picture.classes)


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, integer=True)


def _legend(axes: Any, names: tuple[str, ...]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=COLORS[at], label=name) for at, name in enumerate(names)]
    axes.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        handlelength=0.9,
        handleheight=0.9,
        borderpad=0.2,
        labelspacing=0.4,
    )


def _bare(axes: Any) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
