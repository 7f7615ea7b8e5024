"""The progress of a whole sweep: a bar below the finished runs on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click

from hansa.common.process.terminal import guarded, screen
from hansa.common.values.wording.words import counted, plain
from hansa.simulation.sweep.file import SweepSpec
from hansa.simulation.sweep.plan import Run
from hansa.simulation.sweep.results import Result, metrics_of


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

    def __init__(self, spec: SweepSpec, total: int, before: int) -> None:
        self._spec, self._total, self._done = spec, total, before

    def started(self, run: Run) -> None:
        """Show nothing: the line of its end names it."""

    def ended(self, result: Result) -> None:
        """Print how a run ended."""
        self._done += 1
        click.echo(f"[{self._done}/{self._total}] {ending(result, self._spec)}")


class Bar:
    """Prints the same lines above a bar with the time that has passed and the time that is left."""

    def __init__(self, spec: SweepSpec, total: int, before: int, bar: Any) -> None:
        self._spec, self._total, self._done, self._bar = spec, total, before, bar
        self._task = bar.add_task("", total=total, completed=before)

    def started(self, run: Run) -> None:
        """Name the run under way."""
        self._bar.update(self._task, description=run.title)

    def ended(self, result: Result) -> None:
        """Print how a run ended, and move the bar."""
        self._done += 1
        self._bar.console.print(f"[{self._done}/{self._total}] {ending(result, self._spec)}")
        self._bar.update(self._task, completed=self._done)


@contextmanager
def progress(spec: SweepSpec, total: int, before: int, quiet: bool) -> Iterator[Progress]:
    """Show the progress of a sweep of which some runs were finished before."""
    if not quiet and before:
        click.echo(f"{counted(before, 'run')} of {total} finished before")
    if quiet or before == total:
        yield Silent()
        return
    console = screen()
    if not console.is_terminal:
        yield Lines(spec, total, before)
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
        yield Bar(spec, total, before, bar)


def ending(result: Result, spec: SweepSpec) -> str:
    """Describe how a run ended in one line, with the metrics that the sweep compares."""
    if result.status == "failed":
        return f"{result.run.title}: failed: {plain(result.reason, 300)}"
    compared = metrics_of(spec, [result])
    values = {name: v.metrics[name] for v in result.versions for name in compared if name in v.metrics}
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
    return f"{result.run.title}: {metrics or 'no metrics'}  ({result.seconds:.1f} s)"
