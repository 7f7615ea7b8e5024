"""The list of jobs."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from hansa.common.drawing.markup import Child, tag
from hansa.common.ui.job.versions import numbers
from hansa.common.values.views import JobView
from hansa.dashboard.pages.layout import badge, bar, job_link, moment, span_of, table

SHOWN = 50  # on a page


def found(jobs: Sequence[JobView], words: str) -> list[JobView]:
    """Return the jobs that have all words in their name, id, rule, app or status."""
    wanted = words.lower().split()
    return [
        view
        for view in jobs
        if all(
            word in f"{view.name} {view.job} {view.rule} {view.app} {view.status}".lower() for word in wanted
        )
    ]


def listing(jobs: Sequence[JobView], words: str = "", number: int = 1) -> Element:
    """Return a page of the list, newest first."""
    matching = found(jobs, words)
    pages = max(1, -(-len(matching) // SHOWN))
    number = min(max(number, 1), pages)
    shown = matching[(number - 1) * SHOWN : number * SHOWN]
    empty = f"No job matches {words!r}." if words else "No job yet: `hansa job submit JOB.yaml` submits one."
    rows: list[Sequence[Child]] = [
        (
            tag("span", job_link(view.job, view.name), tag("small", f" {view.job}")),
            badge(view.status),
            view.rule,
            _progress(view),
            numbers(view.metrics),
            span_of(view.seconds),
            moment(view.submitted),
            tag(
                "input",
                type="checkbox",
                name="job",
                value=view.job,
                aria_label=f"compare {view.name} {view.job}",
            ),
        )
        for view in shown
    ]
    columns = ("job", "status", "rule", "progress", "metrics", "time", "submitted", "compare")
    whole = table(columns, rows, "Jobs, newest first", empty, ("time",), ("metrics",))
    if not rows:
        return whole
    return tag(
        "div",
        tag(
            "form",
            whole,
            tag("p", tag("button", "Compare the marked jobs", class_="strong")),
            method="get",
            action="/compare",
        ),
        _turning(words, number, pages),
    )


def _progress(view: JobView) -> Element:
    words = f"{view.rounds}/{view.rounds_asked or '–'} {view.unit}s"
    shown = view.rounds_asked and not view.ended
    return tag("span", bar(view.rounds, view.rounds_asked, words) if shown else None, tag("small", words))


def _turning(words: str, number: int, pages: int) -> Element | None:
    if pages == 1:
        return None
    from urllib.parse import urlencode

    def link(to: int, name: str) -> Element | None:
        if not 1 <= to <= pages:
            return None
        return tag("a", name, href=f"/jobs?{urlencode({'q': words, 'page': to})}")

    return tag(
        "nav",
        link(number - 1, "newer"),
        f" page {number} of {pages} ",
        link(number + 1, "older"),
        aria_label="More jobs",
        class_="turning",
    )
