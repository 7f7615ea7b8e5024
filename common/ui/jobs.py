"""`hansa job submit|list|show|watch|cancel|model`; `compare` and `verify` have modules of their own."""

import importlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click

from hansa.common.process.settings import show_variables
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.client import Client
from hansa.common.ui.groups import print_groups
from hansa.common.ui.options import amount, controller_option, json_option, print_json, print_table, run_async
from hansa.common.ui.participation import metrics_missing, shortfall_lines, warn_of_shortfalls, warning_lines
from hansa.common.values.errors import InvalidInput
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.common.values.words import by_reason, in_order, listed, share_of

T = TypeVar("T")
SUMMARY = {
    "job",
    "name",
    "status",
    "reason",
    "version",
    "rounds",
    "seconds",
    "metrics",
    "bytes_up",
    "bytes_down",
}
SUMMARY |= {"metrics_version", "examples", "examples_total"}  # what the metrics are of
SHOWN = 10  # contributions of a version in the table; JSON has all
ELSEWHERE = {"compare": "hansa.common.ui.compare", "verify": "hansa.controller.verify.cli"}


class JobGroup(click.Group):
    """The job commands; those with a module of their own are loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return [*super().list_commands(ctx), *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        if cmd_name in ELSEWHERE:
            found: click.Command = importlib.import_module(ELSEWHERE[cmd_name]).command
            return show_variables(found)
        return super().get_command(ctx, cmd_name)


@click.group(cls=JobGroup)
def job() -> None:
    """Submit, watch, fetch, compare and verify jobs."""


def ask(controller: Endpoint, question: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, ask one question, hang up."""

    async def talk() -> T:
        async with Client(controller) as client:
            return await question(client)

    return run_async(talk())


def summary(view: JobView) -> dict[str, object]:
    """Return the one JSON object that `submit`, `cancel` and `list` speak of a job."""
    return view.model_dump(include=SUMMARY)


def outcome(view: JobView) -> dict[str, object]:
    """Return the one JSON object that `run`, `watch` and `submit --wait` speak of a job that they waited for."""
    return summary(view) | {"warnings": warning_lines(view)}


def details(view: JobView) -> dict[str, object]:
    """Return a job with its history and, if sites told of their data, with what they told."""
    told: dict[str, object] = {"survey": view.survey.model_dump()} if view.survey else {}
    told["shortfalls"] = [shortfall.model_dump() for shortfall in view.shortfalls]
    told["resolved"] = view.resolved.model_dump(mode="json") if view.resolved else None
    return outcome(view) | told | {"history": [entry.model_dump() for entry in view.history]}


def warn(view: JobView, told: Sequence[str] = ()) -> None:
    """Tell whoever submits or follows a job what is likely not meant; programs that read JSON are not disturbed."""
    for warning in view.warnings:
        if warning not in told:
            click.echo(f"hansa: warning: {warning}", err=True)


def conclude(ended: JobView, as_json: bool, told: Sequence[str] = ()) -> None:
    """Say what else there is to say of a job that was waited for; `told` are warnings that were given before."""
    warn(ended, told)
    if as_json:
        print_json(outcome(ended))
    else:
        warn_of_shortfalls(ended)


def exit_code(view: JobView) -> int:
    """Return what a command that waited for a job ends with."""
    return 0 if view.status == "completed" else 1


@job.command()
@click.argument("file", type=click.Path(path_type=Path))
@controller_option
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, such as train.epochs=2."
)
@click.option("--wait", is_flag=True, help="Follow the job as `watch` does; exit 1 unless it completed.")
@json_option
def submit(file: Path, controller: Endpoint, changes: tuple[str, ...], wait: bool, as_json: bool) -> None:
    """Submit a job file."""
    from hansa.common.job.file import load_job

    spec = load_job(file, changes)
    view = ask(controller, lambda client: client.submit(spec))
    warn(view)
    if not wait:
        if as_json:
            print_json(summary(view))
        else:
            click.echo(f"submitted {view.job} ({view.name}); `hansa job watch {view.job}` follows it")
        return
    ended = follow(controller, view.job, quiet=as_json, known=True)
    conclude(ended, as_json, told=view.warnings)
    raise SystemExit(exit_code(ended))


@job.command("list")
@controller_option
@json_option
def list_jobs(controller: Endpoint, as_json: bool) -> None:
    """List all jobs, newest first."""
    views = ask(controller, lambda client: client.jobs())
    if as_json:
        print_json([summary(view) for view in views])
        return
    rows = [
        (
            v.job,
            v.name,
            v.status,
            f"{v.rounds}/{v.rounds_asked or '-'}",
            metrics_text(v),
            f"{v.seconds:.1f} s",
            v.reason,
        )
        for v in views
    ]
    print_table(
        ("job", "name", "status", "round", "metrics", "time", "reason"),
        rows,
        "no job was ever submitted here",
    )


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@json_option
def show(job_id: str, controller: Endpoint, as_json: bool) -> None:
    """Show a job with its history. JOB is an id, the beginning of one, or a name."""
    view = ask(controller, lambda client: client.show(job_id))
    if as_json:
        print_json(details(view))
        return
    click.echo(f"{view.job} ({view.name}): {view.status}" + (f", {view.reason}" if view.reason else ""))
    click.echo(
        f"rule {view.rule}, app {view.app}, submitted {view.submitted}, {view.seconds:.1f} s,"
        f" {amount(view.bytes_up)} up, {amount(view.bytes_down)} down"
    )
    for warning in view.warnings:
        click.echo(f"warning: {warning}")
    unmeasured = metrics_missing(view)
    if unmeasured:
        click.echo(unmeasured)
    measured = any(entry.distance is not None for entry in view.history)
    rows = [
        (
            str(entry.version),
            f"{entry.round} ({entry.phase})" if entry.phase else str(entry.round),
            f"{entry.seconds:.1f}",
            *(() if unmeasured else (numbers(entry.metrics), _measured_on(entry))),
            *(("-" if entry.distance is None else f"{entry.distance:.4f}",) if measured else ()),
            _shares(entry),
            "; ".join(_remarks(entry)),
        )
        for entry in view.history
    ]
    distance = ("distance",) if measured else ()
    metrics = () if unmeasured else ("metrics", "examples")
    titles = ("version", "round", "seconds", *metrics, *distance, "contributions", "remarks")
    print_table(titles, rows, "no model yet")
    print_groups(view)
    if view.survey and view.survey.classes:
        click.echo()
        columns = [str(label) for label in range(max(map(len, view.survey.classes.values())))]
        held = [(site, *map(str, counts)) for site, counts in view.survey.classes.items()]
        print_table(("examples of class", *columns), held, "")
    for line in shortfall_lines(view):
        click.echo(f"warning: {line}")


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@json_option
def watch(job_id: str, controller: Endpoint, as_json: bool) -> None:
    """Follow a job until it ends; exit 1 unless it completed.

    If the controller restarts meanwhile, this is said on standard error and the command goes on when it is
    back. Ctrl-C stops watching, and the job goes on.
    """
    ended = follow(controller, job_id, quiet=as_json)
    conclude(ended, as_json)
    raise SystemExit(exit_code(ended))


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@json_option
def cancel(job_id: str, controller: Endpoint, as_json: bool) -> None:
    """End a job now; its last community model stays."""
    view = ask(controller, lambda client: client.cancel(job_id))
    if as_json:
        print_json(summary(view))
    else:
        click.echo(f"{view.job} ({view.name}) is cancelled at version {view.version}")


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The safetensors file to write.",
)
@click.option("--version", type=click.IntRange(0), help="Which version (default: the newest).")
@json_option
def model(job_id: str, controller: Endpoint, output: Path, version: int | None, as_json: bool) -> None:
    """Fetch a job's community model as a safetensors file."""
    from hansa.common.models.checkpoints import save_checkpoint

    if not output.absolute().parent.is_dir():
        raise InvalidInput(f"-o {output}: there is no folder {output.absolute().parent}")
    manifest, payload, origin = ask(controller, lambda client: client.export(job_id, version))
    save_checkpoint(output, manifest, payload, origin)
    if as_json:
        print_json({"file": str(output), "tensors": len(manifest.digests), "digest": manifest.digest.hex()})
    else:
        tensors = len(manifest.digests)
        click.echo(
            f"{output}: {tensors} tensors, {amount(manifest.spec.nbytes)}, digest {manifest.digest.hex()[:16]}…"
        )


def follow(controller: Endpoint, job_id: str, quiet: bool, known: bool = False) -> JobView:
    """Show a job live until it ends, also over restarts of its controller, and return its last view."""
    from hansa.common.ui.live import show_live
    from hansa.common.ui.watching import Watching

    watching = Watching(controller, job_id, known)
    return run_async(show_live(watching.views(), quiet), watching.farewell)


def metrics_text(view: JobView) -> str:
    """Write a job's newest metrics in a few characters."""
    return numbers(view.metrics)


def _remarks(entry: VersionView) -> Iterator[str]:
    """Yield who is missing and why, how far models went apart on their way, and what the aggregator has to say."""
    yield from (*by_reason(entry.lost), *by_reason(entry.unevaluated))
    apart = [f"{hop.divergence:.4f}" for hop in entry.hops if hop.divergence is not None]
    if apart:
        yield f"{len(entry.hops)} hops, divergence {apart[0]}" + (
            f" to {apart[-1]}" if len(apart) > 1 else ""
        )
    if entry.note:
        yield entry.note
    yield from entry.warnings


def _measured_on(entry: VersionView) -> str:
    return share_of(entry.examples, entry.examples_total) if entry.examples else "-"


def _shares(entry: VersionView) -> str:
    """Write what each site's update was worth."""
    worth = (f"{site} {entry.contributions[site]:g}" for site in sorted(entry.contributions, key=in_order))
    return listed(worth, SHOWN)


def numbers(metrics: object) -> str:
    """Write metrics in a few characters."""
    shown = [f"{n} {v:.4f}" for n, v in dict(metrics).items() if v is not None]  # type: ignore[call-overload]
    return ", ".join(shown) or "-"
