"""The live view of a job: a table with bars on a terminal, plain lines elsewhere."""

from collections.abc import AsyncIterator
from typing import Any

import click

from hansa.common.process.terminal import guarded, screen
from hansa.common.values.history import Findings, VersionView
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import metrics_missing
from hansa.common.values.wording.words import counted, in_order, listed, share_of

NAME = 20  # columns that the bars leave for a site's name on a narrow terminal


async def show_live(views: AsyncIterator[JobView], quiet: bool = False, tell_failure: bool = True) -> JobView:
    """Show a job until it ends; return its last view. Without `tell_failure` the caller reports a failure."""
    console = screen()
    if quiet:
        return await _last(views)
    if not console.is_terminal:
        return await _plain(views, tell_failure)
    return await _table(views, console, tell_failure)


async def _last(views: AsyncIterator[JobView]) -> JobView:
    seen = [view async for view in views]
    return seen[-1]


async def _plain(views: AsyncIterator[JobView], tell_failure: bool) -> JobView:
    """Print a line whenever the status or its reason changes, and one for each model with its metrics.

    If evaluations take longer than merges, the metrics of a model follow later in their own line. So do
    metrics over more examples, once late evaluators have reported.
    """
    printed_state, printed, without, view = "", 0, False, None
    measured: dict[int, int] = {}  # printed versions, and the number of examples of their printed metrics
    waiting: dict[int, VersionView] = {}  # versions that are not due yet; they come again only if they change
    evaluated = 0
    async for view in views:
        # After the last round only its evaluation is pending.
        closing = view.rounds_asked and view.rounds >= view.rounds_asked
        state = f"{view.status}, {view.reason}" if view.reason and not closing else view.status
        if state != printed_state and not view.ended:
            printed_state = state
            click.echo(f"job {view.job} ({view.name}): {state}")
        evaluated = max([evaluated, *(entry.version for entry in view.history if entry.evaluated)])
        due = view.version if view.ended else max(evaluated, view.version - 2)  # evaluations may lag behind
        if due > 0 and not without and metrics_missing(view):
            without = True
            click.echo(metrics_missing(view))
        waiting |= {entry.version: entry for entry in view.history if entry.version > 0}
        for version in sorted(version for version in waiting if version <= due):
            entry = waiting.pop(version)
            if version > printed:
                click.echo(version_line(entry, view))
                printed = version
                measured[version] = _examples(entry) if entry.evaluated else 0
            elif entry.evaluated and _examples(entry) > measured.get(entry.version, _examples(entry)):
                click.echo(f"{view.unit} {entry.round} evaluated: {_evaluation(entry)}{_test_line(entry)}")
                measured[entry.version] = _examples(entry)
    assert view is not None
    if tell_failure or view.status == "completed":
        click.echo(f"job {view.job} {view.status}: {view.reason}")
    return view


def _examples(entry: VersionView) -> int:
    """Return how many examples a version was evaluated on, including those of test sites."""
    return entry.examples + (entry.test.examples if entry.test else 0)


def _test_line(entry: VersionView) -> str:
    """Return a second line with what the job's test sites found in a version, if it has such sites."""
    return f"\n  test sites  {_evaluation(entry.test)}" if entry.test else ""


def _evaluation(findings: Findings) -> str:
    """Return a version's metrics, the number of examples that they cover, and the missing evaluators."""
    values = "  ".join(f"{n} {v:.4f}" for n, v in findings.metrics.items() if v is not None)
    examples = share_of(findings.examples, findings.examples_total, findings.drawn)
    values += f"  on {examples} examples" if findings.examples else ""
    missing = listed(sorted(findings.unevaluated, key=in_order))
    values += f"  not evaluated by: {missing}" if missing else ""
    return values


def version_line(entry: VersionView, view: JobView) -> str:
    """Return the line that is printed for a version."""
    under_way = entry.examples and not entry.evaluated  # the metrics of some sites say little
    values = "" if under_way and not view.ended else _evaluation(entry)
    values += f"  distance {entry.distance:.4f}" if entry.distance is not None else ""
    lost = f"  lost: {listed(sorted(entry.lost, key=in_order))}" if entry.lost else ""
    lost += f"  {entry.note}" if entry.note else ""
    lost += "".join(f"  {warning}" for warning in entry.warnings)
    of = f"/{view.rounds_asked}" if view.rounds_asked else ""
    of += f" ({entry.phase})" if entry.phase else ""
    updates = counted(entry.update_count, "update")
    line = f"{view.unit} {entry.round}{of}  {entry.seconds:6.1f} s  {updates}  {values}{lost}"
    return line + (_test_line(entry) if values else "")


async def _table(views: AsyncIterator[JobView], console: Any, tell_failure: bool) -> JobView:
    from rich.live import Live

    view = None
    # Other output passes through rich meanwhile, which would interpret colours and links: clean it first.
    with Live(console=console, refresh_per_second=8, transient=False) as live, guarded():
        async for view in views:
            live.update(rendered(view, tell_failure))
    assert view is not None
    return view


def rendered(view: JobView, tell_failure: bool = True) -> Any:
    """Return the table for a terminal."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    colour = {"completed": "green", "failed": "red", "cancelled": "yellow"}.get(view.status, "cyan")
    head = Text.assemble((f"{view.name} ", "bold"), (f"{view.job}  ", "dim"), (view.status, colour))
    head.append(f"   {view.rule}   {view.seconds:.0f} s")
    rounds = Table.grid(padding=(0, 2))
    asked = max(view.rounds_asked, 1)
    metrics = "   ".join(f"{n} {v:.4f}" for n, v in view.metrics.items() if v is not None) or metrics_missing(
        view
    )
    if view.metrics_version is not None:
        examples = share_of(view.examples, view.examples_total, view.drawn)
        metrics += f"   on {examples} examples (version {view.metrics_version})"
    rounds.add_row(
        f"{view.unit}s",
        ProgressBar(total=asked, completed=view.rounds, width=30),
        f"{view.rounds}/{view.rounds_asked}" + (f" ({view.phase})" if view.phase else ""),
        metrics,
    )
    if view.test and view.test.metrics:
        rounds.add_row("test sites", "", "", _evaluation(view.test))
    sites = Table.grid(padding=(0, 2))
    sites.add_column(min_width=min(NAME, max((len(site.site) for site in view.sites), default=0)))
    for site in view.sites:
        total = max(site.epochs, 1)
        done = site.epoch if site.state == "training" else (total if site.state in ("done", "idle") else 0)
        loss = f"loss {site.loss:.4f}" if site.loss is not None else ""
        bar = ProgressBar(total=total, completed=done, width=20)
        sites.add_row(site.site, bar, site.state, f"{site.examples} examples", loss)
    parts: list[Any] = [head, rounds, Text(), sites]
    if view.reason and not view.ended:
        parts.append(Text(view.reason, style="yellow"))
    if tell_failure and view.status in ("failed", "cancelled"):
        parts.append(Text(view.reason, style=colour))
    return Group(*parts)
