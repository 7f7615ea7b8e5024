"""`hansa sweep`: one job with many settings and seeds, compared in a table."""

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

import click
from click.core import ParameterSource

from hansa.common.client.rows import check_table
from hansa.common.report.material import PAGE
from hansa.common.report.sweep import SWEEP
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.options import controller_option, print_json
from hansa.common.values.errors import Unreachable
from hansa.common.values.wording.words import counted
from hansa.simulation.sweep.api import folder_of, run_sweep
from hansa.simulation.sweep.curves import draw_curves
from hansa.simulation.sweep.driver import Driver
from hansa.simulation.sweep.export import document, versions_file, write_table
from hansa.simulation.sweep.plan import Plan, make_plan
from hansa.simulation.sweep.runners import Choice
from hansa.simulation.sweep.show import print_results
from hansa.simulation.sweep.table import Table

INTERRUPTED = 130  # the exit code, whichever signal it was


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results go and are found again (default: .hansa/sweeps/NAME).",
)
@click.option(
    "--workers",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Worker processes of each simulation; 0: this process does everything. The results are the same.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Simulate on a Ray cluster: HOST:PORT of its head, or auto for a cluster on this machine.",
)
@click.option("--processes", is_flag=True, help="Run each job as `hansa run` does, as real processes.")
@click.option(
    "--fleet", is_flag=True, help="Run the jobs on the standing controller that --controller names."
)
@controller_option
@click.option(
    "--table",
    "table_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a row for each run to this .csv or .parquet file, and each version to a file beside it.",
)
@click.option("--no-retry", is_flag=True, help="Do not run again what failed before.")
@click.option("--dry-run", is_flag=True, help="Check everything and list the runs, but run nothing.")
@click.option("--show", "only_show", is_flag=True, help="Show the results that there are, but run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of progress and table.")
@click.pass_context
def sweep(
    ctx: click.Context,
    file: Path,
    out: Path | None,
    workers: int,
    ray: str | None,
    processes: bool,
    fleet: bool,
    controller: Endpoint,
    table_file: Path | None,
    no_retry: bool,
    dry_run: bool,
    only_show: bool,
    as_json: bool,
) -> None:
    """Run a job with all combinations of some settings, with several seeds, and compare the results.

    FILE names a base job and what is varied. Every combination is checked before anything runs. Runs that
    are finished are not repeated, so after Ctrl-C, a crash or a change of FILE the same command continues.
    """
    # An address in the environment alone does not send jobs to a fleet.
    named = ctx.get_parameter_source("controller") is ParameterSource.COMMANDLINE
    runner = Choice(workers, ray, processes, controller if fleet or named else None).runner()
    if table_file:
        check_table(table_file)
    plan = make_plan(file, runner.way)
    folder = folder_of(plan, out)
    if dry_run:
        _list_runs(plan, folder, as_json)
        return
    if not as_json:
        click.echo(f"{_size(plan)}; results in {folder}")
    if only_show:
        table = Table(plan, Driver(plan, folder).results())
    else:
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            table = run_sweep(plan, folder, runner, not no_retry, quiet=as_json)
        except KeyboardInterrupt:
            _say_how_to_go_on(file)
            raise SystemExit(INTERRUPTED) from None
        except Unreachable:
            _say_how_to_go_on(file)
            raise
    _conclude(table, folder, table_file, as_json)
    raise SystemExit(0 if all(result.status == "completed" for result in table.results) else 1)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """End a sweep at SIGTERM as at Ctrl-C, even where a shell has it ignore SIGINT."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):  # asyncio's own cancels the task; an exception could come out anywhere in its loop
        handler(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt


def _size(plan: Plan) -> str:
    """Describe how many runs there are, and why."""
    factors = " × ".join(f"{len(axis.points)} {axis.name}" for axis in plan.axes)
    left = " of " + factors if factors else ""
    return f"{plan.spec.name}: {counted(len(plan.runs), 'run')}{left}, by {plan.way.name}"


def _list_runs(plan: Plan, folder: Path, as_json: bool) -> None:
    results = Driver(plan, folder).results()
    if as_json:
        runs = [{"run": each.run.title, "status": each.status, "folder": each.run.folder} for each in results]
        print_json({"sweep": plan.spec.name, "folder": str(folder), "runs": runs})
        return
    click.echo(_size(plan))
    for result in results:
        click.echo(f"  {result.run.title}" + (f" ({result.status})" if result.status != "missing" else ""))


def _say_how_to_go_on(file: Path) -> None:
    words = shlex.join(sys.argv[1:]) or f"sweep {file}"
    click.echo(f"\nstopped; finished runs are kept, and `hansa {words}` continues with the others", err=True)


def _conclude(table: Table, folder: Path, table_file: Path | None, as_json: bool) -> None:
    """Print or write all that was asked for."""
    if table_file:
        write_table(table, table_file)
    files = draw_curves(table, folder) if folder.exists() else []
    if as_json:
        print_json(document(table, with_versions=False) | {"folder": str(folder)})
        return
    print_results(table)
    if (folder / SWEEP).exists():
        click.echo(f"report: {folder / PAGE}, for programs {SWEEP} beside it")
    if table_file:
        click.echo(f"tables: {table_file}, {versions_file(table_file)}")
    if files:
        click.echo(f"curves: {', '.join(path.name for path in files)} in {folder}")
