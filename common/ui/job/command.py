"""`hansa job submit|list|show|watch|cancel|delete|model`; `compare` and others have their own modules."""

import importlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.process.settings import show_variables
from hansa.common.rpc.channel import Endpoint
from hansa.common.torch.installed import require_torch
from hansa.common.ui.job.groups import print_groups
from hansa.common.ui.job.job_documents import details, exit_code, outcome, summary
from hansa.common.ui.job.job_warnings import warn, warn_of_shortfalls
from hansa.common.ui.job.versions import numbers, print_versions
from hansa.common.ui.options import controller_option, json_option, print_json, print_table, run_async
from hansa.common.values.errors import InvalidInput
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import metrics_missing, shortfall_lines
from hansa.common.values.wording.sizes import amount
from hansa.common.values.wording.words import listed

T = TypeVar("T")
ELSEWHERE = {
    "report": "hansa.common.ui.job.report",
    "events": "hansa.common.ui.job.events",
    "compare": "hansa.common.ui.job.compare",
    "export": "hansa.common.ui.job.export",
    "verify": "hansa.controller.verify.cli",
}


class JobGroup(click.Group):
    """The job commands; those with their own module are loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return [*super().list_commands(ctx), *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        if cmd_name in ELSEWHERE:
            command: click.Command = importlib.import_module(ELSEWHERE[cmd_name]).command
            return show_variables(command)
        return super().get_command(ctx, cmd_name)


class WhichVersion(click.ParamType[int | str]):
    """A version of a job: `best`, `last` or a number."""

    name = "VERSION"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or the word."""
        if value in ("best", "last"):
            return value
        if value.isascii() and value.isdigit() and len(value) < 19:
            return int(value)
        why = f"{value!r} is not a version: give best, last or a number such as 12"
        raise click.BadParameter(why, ctx, param)


@click.group(cls=JobGroup)
def job() -> None:
    """Submit, watch, fetch, compare, verify and delete jobs."""


def ask(controller: Endpoint, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Connect, ask the controller one question, and hang up."""

    async def talk() -> T:
        async with AsyncClient(controller) as client:
            return await question(client)

    return run_async(talk())


def conclude(ended: JobView, as_json: bool, known: Sequence[str] = ()) -> None:
    """Print the warnings of a job that has ended, except those `known` already, and its JSON if asked for."""
    warn(ended, known)
    if as_json:
        print_json(outcome(ended))
    else:
        warn_of_shortfalls(ended)


@job.command()
@click.argument("file", type=click.Path(path_type=Path))
@controller_option
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, such as train.epochs=2."
)
@click.option("--key", default="", help="Submit the job once: with the same key, the job of before is shown.")
@click.option("--wait", is_flag=True, help="Follow the job as `watch` does; exit 1 unless it completed.")
@json_option
def submit(
    file: Path, controller: Endpoint, changes: tuple[str, ...], key: str, wait: bool, as_json: bool
) -> None:
    """Submit a job file."""
    from hansa.common.job.file import load_job
    from hansa.common.ui.job.layers import require_fitting_layers

    spec = load_job(file, changes)
    require_fitting_layers(spec, file)
    view = ask(controller, lambda client: client.submit(spec, key=key)).view
    warn(view)
    if not wait:
        if as_json:
            print_json(summary(view))
        else:
            click.echo(f"submitted {view.job} ({view.name}); `hansa job watch {view.job}` follows it")
        return
    ended = follow(controller, view.job, quiet=as_json, known=True)
    conclude(ended, as_json, known=view.warnings)
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
            numbers(v.metrics),
            f"{v.seconds:.1f} s",
            v.reason,
        )
        for v in views
    ]
    print_table(
        ("job", "name", "status", "round", "metrics", "time", "reason"),
        rows,
        "no jobs yet",
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
    if view.kept:
        names = [f"{version} (best)" if version == view.best else str(version) for version in view.kept]
        click.echo(f"models kept: version {listed(names, 20)}")
    for warning in view.warnings:
        click.echo(f"warning: {warning}")
    if metrics_missing(view):
        click.echo(metrics_missing(view))
    print_versions(view)
    print_groups(view)
    if view.survey and view.survey.classes:
        click.echo()
        columns = [str(label) for label in range(max(map(len, view.survey.classes.values())))]
        rows = [(site, *map(str, counts)) for site, counts in view.survey.classes.items()]
        print_table(("examples of class", *columns), rows, "")
    for line in shortfall_lines(view):
        click.echo(f"warning: {line}")


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@json_option
def watch(job_id: str, controller: Endpoint, as_json: bool) -> None:
    """Follow a job until it ends; exit 1 unless it completed.

    If the controller restarts meanwhile, a message on standard error says so, and the command continues when
    the controller is back. Ctrl-C stops watching; the job continues.
    """
    ended = follow(controller, job_id, quiet=as_json)
    conclude(ended, as_json)
    raise SystemExit(exit_code(ended))


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@json_option
def cancel(job_id: str, controller: Endpoint, as_json: bool) -> None:
    """Cancel a job; its last community model is kept."""
    view = ask(controller, lambda client: client.cancel(job_id))
    if as_json:
        print_json(summary(view))
    else:
        click.echo(f"{view.job} ({view.name}) is cancelled at version {view.version}")


@job.command()
@click.argument("job_id", metavar="JOB")
@controller_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(job_id: str, controller: Endpoint, yes: bool) -> None:
    """Delete a job that has ended, with its models and its journal; the audit log says who did it.

    Without --yes a person at a terminal is asked first; scripts must give it.
    """
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("a deleted job cannot be brought back, and nobody can be asked here: give --yes")
    view = ask(controller, lambda client: client.show(job_id, history=False))
    if not yes:
        question = f"Delete {view.job} ({view.name}, {view.status}, version {view.version}) for good?"
        click.confirm(question, abort=True)
    click.echo(f"{ask(controller, lambda client: client.delete(view.job))} ({view.name}) is deleted")


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
@click.option(
    "--version", type=WhichVersion(), default="last", help="best, last or a number (default: last)."
)
@click.option(
    "--whole", is_flag=True, help="Add what does not travel, as the app builds it here; see `layers`."
)
@click.option("--app", metavar="REF", help="The app for --whole (default: the job's).")
@json_option
def model(
    job_id: str,
    controller: Endpoint,
    output: Path,
    version: int | str,
    whole: bool,
    app: str | None,
    as_json: bool,
) -> None:
    """Fetch a job's community model as a safetensors file."""
    from hansa.common.models.checkpoints import save_checkpoint

    if not output.absolute().parent.is_dir():
        raise InvalidInput(f"-o {output}: there is no folder {output.absolute().parent}")
    manifest, payload, origin = ask(controller, lambda client: client.model(job_id, version))
    if whole:
        require_torch("--whole")
        from hansa.common.ui.job.whole import completed

        manifest, payload, origin = completed(manifest, payload, origin, app)
    save_checkpoint(output, manifest, payload, origin)
    if as_json:
        print_json({"file": str(output), "tensors": len(manifest.digests), "digest": manifest.digest.hex()})
    else:
        tensors = len(manifest.digests)
        click.echo(
            f"{output}: {tensors} tensors, {amount(manifest.spec.nbytes)},"
            f" digest {manifest.digest.hex()[:16]}…"
        )


def follow(controller: Endpoint, job_id: str, quiet: bool, known: bool = False) -> JobView:
    """Show a job live until it ends, even if its controller restarts, and return its last view."""
    from hansa.common.ui.job.live import show_live
    from hansa.common.ui.job.watching import Watching

    watching = Watching(controller, job_id, known)
    return run_async(show_live(watching.views(), quiet), watching.farewell)
