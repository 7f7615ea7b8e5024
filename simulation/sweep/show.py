"""The table of a sweep on the screen, with what its numbers mean and what they cannot show."""

from collections.abc import Callable, Iterator, Sequence

import click

from hansa.common.ui.options import print_table
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import counted, listed
from hansa.simulation.sweep.results import is_loss, target_for
from hansa.simulation.sweep.statistics import ENOUGH, LEVEL, Margin, Summary, smallest_p
from hansa.simulation.sweep.table import Cell, Row, Table

NONE = "–"  # what does not exist
TITLES = {"final": "final", "best": "best by validation", "mean": "mean of curve", "spread": "spread"}
Write = Callable[[float], str]


def print_results(table: Table) -> None:
    """Print a table for each metric, and remarks."""
    spec = table.plan.spec
    if not table.metrics:
        click.echo(f"\n{spec.title or spec.name}: no run has metrics yet")
        columns = [*(axis.name for axis in table.plan.varied), "runs"]
        print_table(columns, [[*row.labels, _runs(row)] for row in table.rows], "")
    for metric in table.metrics:
        click.echo(
            f"\n{spec.title or spec.name}: {metric}" + (" (less is better)" if is_loss(metric, spec) else "")
        )
        columns, rows = cells(table, metric)
        print_table(columns, rows, "there are no combinations")
    for remark in remarks(table):
        click.echo(remark)


def cells(table: Table, metric: str) -> tuple[list[str], list[list[str]]]:
    """Return the titles of the columns and the rows for a metric."""
    spec = table.plan.spec
    target = target_for(metric, spec, table.metrics)
    shown = [name for name in ("final", "mean", "last", "best", "spread") if _exists(table, metric, name)]
    shown = [spec.compare, *(name for name in shown if name != spec.compare)]
    titles = TITLES | {"last": f"last {spec.last}"}
    columns = [axis.name for axis in table.plan.varied] + ["runs"]
    columns += [titles[shown[0]], "margin (range)", "p", *(titles[name] for name in shown[1:])]
    if target:
        columns += [f"rounds to {target.value:g}", f"bytes to {target.value:g}"]
    return columns, [_line(row, metric, shown, bool(target)) for row in table.rows]


def _exists(table: Table, metric: str, name: str) -> bool:
    return any(row.cells[metric][name].summary for row in table.rows)


def _line(row: Row, metric: str, shown: Sequence[str], target: bool) -> list[str]:
    own, done = row.cells[metric], row.count("completed")
    first = own[shown[0]]
    line = [*row.labels, _runs(row)]
    line += [_spread(first, number, done), _margin(row, first.margin), _p(first.margin)]
    line += [_spread(own[name], number, done) for name in shown[1:]]
    if target:
        line += [_reached(own["rounds_to_target"], "{:.3g}".format, done)]
        line += [_reached(own["bytes_to_target"], amount, done)]
    return line


def _runs(row: Row) -> str:
    """Return how many runs of a row have completed."""
    done = row.count("completed")
    return str(done) if done == len(row.results) else f"{done} of {len(row.results)}"


def number(value: float) -> str:
    """Write a value of a metric."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.5g}"


def _spread(cell: Cell, write: Write, runs: int) -> str:
    """Return mean ± deviation, and of how many runs if some lack the value."""
    summary = cell.summary
    if summary is None:
        return NONE
    deviation = f" ± {write(summary.deviation)}" if summary.deviation is not None else ""
    return write(summary.mean) + deviation + _of(summary, runs)


def _reached(cell: Cell, write: Write, runs: int) -> str:
    """Return the mean and the range over the runs that reached the target."""
    summary = cell.summary
    if summary is None:
        return "not reached" if runs else NONE
    apart = write(summary.least) != write(summary.most)
    spread = f" ({write(summary.least)} to {write(summary.most)})" if apart else ""
    return write(summary.mean) + spread + _of(summary, runs)


def _of(summary: Summary, runs: int) -> str:
    return f" [{summary.n} of {runs}]" if summary.n < runs else ""


def _margin(row: Row, margin: Margin | None) -> str:
    if row.is_baseline:
        return "baseline"
    if margin is None:
        return NONE
    spread = f" ({margin.least:+.4f} to {margin.most:+.4f})" if margin.n > 1 else ""
    return f"{margin.mean:+.4f}{spread}"


def _p(margin: Margin | None) -> str:
    if margin is None or margin.p is None:
        return NONE
    return f"{margin.p:.3g}"


def remarks(table: Table) -> Iterator[str]:
    """Yield what the table does not say by itself."""
    failed = [result for result in table.results if result.status == "failed"]
    missing = sum(result.status == "missing" for result in table.results)
    for result in failed[:10]:
        yield f"failed: {result.run.title}: {result.reason}"
    if len(failed) > 10:
        yield f"failed: {counted(len(failed) - 10, 'more run')}; sweep.json has the reasons"
    if missing:
        yield f"{counted(missing, 'run')} of {len(table.results)} missing: the same command makes them"
    versions = sorted({result.hansa for result in table.results if result.hansa})
    if len(versions) > 1:
        yield f"the runs were made by different versions of Hansa: {listed(versions)}"
    yield from _about_the_test(table)


def _about_the_test(table: Table) -> Iterator[str]:
    compare = table.plan.spec.compare
    margins = [
        margin
        for row in table.rows
        for metric in table.metrics
        if (margin := row.cells[metric][compare].margin) is not None
    ]
    if not margins:
        return
    repetitions = " and ".join(axis.name for axis in table.plan.repeated) or "seed"
    pairs = max(margin.n for margin in margins)
    if pairs < 2:
        yield f"margins are of a single pair: more values of {repetitions} are needed to compare"
        return
    yield (
        f"± is the deviation over {repetitions}; margins are paired by {repetitions};"
        " p: exact sign-flip test of their mean, two-sided, not corrected for the number of comparisons"
    )
    if pairs < ENOUGH:
        yield (
            f"{counted(pairs, 'pair')} cannot show significance: the smallest p that they can have is"
            f" {smallest_p(pairs):.3g}; p < {LEVEL:g} needs {ENOUGH} or more"
        )
