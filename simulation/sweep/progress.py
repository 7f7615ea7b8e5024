"""The progress of a whole sweep: a bar below the finished runs on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click

from hansa.common.process.terminal import guarded, screen
from hansa.common.values.words import counted, plain
from hansa.simulation.sweep.plan import Run
from hansa.simulation.sweep.results import Result


class Progress(Protocol):
    """Shows what a sweep is doing."""

    def started(self, run: Run) -> None:
        """A run has begun."""

    def ended(self, result: Result) -> None:
        """A run has ended."""


class Silent:
    """Shows nothing: for programs."""

    def started(self, run: Run) -> None:
        """Show nothing."""

    def ended(self, result: Result) -> None:
        """Show nothing."""


class Lines:
    """Prints a line when a run ends."""

    def __init__(self, total: int, before: int) -> None:
        self._total, self._done = total, before

    def started(self, run: Run) -> None:
        """Show nothing: the line of its end names it."""

    def ended(self, result: Result) -> None:
        """Print how a run ended."""
        self._done += 1
        click.echo(f"[{self._done}/{self._total}] {ending(result)}")


class Bar:
    """Prints the same lines above a bar with the time that has passed and the time that is left."""

    def __init__(self, total: int, before: int, bar: Any) -> None:
        self._total, self._done, self._bar = total, before, bar
        self._task = bar.add_task("", total=total, completed=before)

    def started(self, run: Run) -> None:
        """Name the run under way."""
        self._bar.update(self._task, description=run.title)

    def ended(self, result: Result) -> None:
        """Print how a run ended, and move the bar."""
        self._done += 1
        self._bar.console.print(f"[{self._done}/{self._total}] {ending(result)}")
        self._bar.update(self._task, completed=self._done)


@contextmanager
def progress(total: int, before: int, quiet: bool) -> Iterator[Progress]:
    """Show the progress of a sweep of which some runs were finished before."""
    if not quiet and before:
        click.echo(f"{counted(before, 'run')} of {total} finished before")
    if quiet or before == total:
        yield Silent()
        return
    console = screen()
    if not console.is_terminal:
        yield Lines(total, before)
        return
    from rich import progress as rich

    columns = (
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.description}", markup=False),
    )
    with rich.Progress(*columns, console=console, transient=True) as bar, guarded():
        yield Bar(total, before, bar)


def ending(result: Result) -> str:
    """Describe how a run ended in one line."""
    if result.status == "failed":
        return f"{result.run.title}: failed: {plain(result.reason, 300)}"
    measured = [version.metrics for version in result.versions if version.metrics]
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in measured[-1].items()) if measured else ""
    return f"{result.run.title}: {metrics or 'no metrics'}  ({result.seconds:.1f} s)"
