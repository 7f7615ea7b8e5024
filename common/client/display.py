"""A job as notebooks show it: a small table of its newest versions."""

from hansa.common.drawing.markup import html, tag
from hansa.common.values.views import JobView

SHOWN = 10  # versions


def job_html(view: JobView) -> str:
    """Return a job and its newest versions as HTML."""
    of = f" of {view.rounds_asked}" if view.rounds_asked else ""
    names = list(dict.fromkeys(name for entry in view.history for name in entry.metrics))
    rows = [
        (
            str(entry.version),
            f"{entry.seconds:.1f}",
            str(entry.update_count),
            *("" if (value := entry.metrics.get(name)) is None else f"{value:.4f}" for name in names),
        )
        for entry in view.history[-SHOWN:]
    ]
    titles = ("version", "seconds", "updates", *names)
    table = tag(
        "table",
        tag("tr", (tag("th", title) for title in titles)),
        (tag("tr", (tag("td", cell) for cell in row)) for row in rows),
    )
    return html(
        tag(
            "div",
            tag("b", view.name),
            " ",
            tag("code", view.job),
            f" {view.status}" + (f": {view.reason}" if view.reason else ""),
            tag("br"),
            f"{view.rounds}{of} {view.unit}s, {view.seconds:.0f} s, rule {view.rule}",
            table if rows else None,
        )
    )
