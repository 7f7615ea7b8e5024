"""`hansa controller start|stop|status|health|logs`."""

import sys
from pathlib import Path

import click

from hansa.common.rpc.channel import DEFAULT_CONTROLLER, Endpoint
from hansa.common.ui.logs import follow_option, lines_option, show_log
from hansa.common.ui.options import (
    LONGEST,
    Address,
    Measure,
    Size,
    controller_option,
    json_option,
    print_json,
    run_async,
    state_option,
    tls_option,
)
from hansa.common.values.errors import HansaError
from hansa.controller.storage.defaults import places


@click.group()
def controller() -> None:
    """Start, stop and inspect a controller."""


@controller.command()
@click.option(
    "--listen",
    type=Address(),
    envvar="HANSA_LISTEN",
    default=DEFAULT_CONTROLLER,
    show_default=True,
    help="The address that sites and operators connect to; port 0 picks a free port.",
)
@click.option(
    "--store",
    envvar="HANSA_STORE",
    help="Where models are stored: memory:, disk:PATH or redis://… (default: disk below --state).",
)
@state_option
@click.option(
    "--memory",
    type=Size(least=16 << 20),
    envvar="HANSA_MEMORY",
    default="1GiB",
    show_default=True,
    help="Memory for models in transit and for sums; when it is used up, transfers wait.",
)
@click.option(
    "--max-model",
    type=Size(),
    envvar="HANSA_MAX_MODEL",
    default="64GiB",
    show_default=True,
    help="The largest model that sites and operators may send.",
)
@click.option(
    "--metrics",
    type=Address(),
    envvar="HANSA_METRICS",
    help="Serve Prometheus metrics at this address.",
)
@tls_option
@click.option(
    "--insecure",
    is_flag=True,
    envvar="HANSA_INSECURE",
    help="Allow listening beyond loopback without certificates.",
)
@click.option(
    "--heartbeat",
    type=Measure(0.1, LONGEST),
    envvar="HANSA_HEARTBEAT",
    default=5.0,
    show_default=True,
    help="Seconds between heartbeats.",
)
@click.option(
    "--grace",
    type=Measure(0, LONGEST),
    envvar="HANSA_GRACE",
    default=15.0,
    show_default=True,
    help="Seconds in which a lost site may reconnect.",
)
@click.option(
    "--keep-days",
    type=Measure(0, 36_500),
    envvar="HANSA_KEEP_DAYS",
    help="Delete jobs, models and all, this many days after their end (default: keep them).",
)
@click.option("--daemon", is_flag=True, help="Detach, with a pid and a log file in the state directory.")
def start(
    listen: str,
    store: str | None,
    state: Path | None,
    memory: int,
    max_model: int,
    metrics: str | None,
    tls: Path | None,
    insecure: bool,
    heartbeat: float,
    grace: float,
    keep_days: float | None,
    daemon: bool,
) -> None:
    """Start a controller and resume the jobs of its state directory."""
    from hansa.common.process import logs
    from hansa.common.process.state import announce, detach, locked, write_note

    folder, url = places(state, store)
    if daemon:
        arguments = [word for word in sys.argv[1:] if word != "--daemon"]
        click.echo(detach(arguments, folder, "controller"))
        return
    from hansa.controller.server import ControllerOptions, serve

    logs.set_up()
    options = ControllerOptions(
        listen, folder, url, insecure, heartbeat, grace, memory, tls, max_model, metrics, keep_days
    )

    def ready(address: str) -> None:
        import os

        write_note(folder, "controller", {"pid": os.getpid(), "address": address})
        announce(f"ready controller (pid {os.getpid()}) listens on {address}; state and log in {folder}")

    with locked(folder, "controller"):
        run_async(serve(options, ready))


@controller.command()
@state_option
def stop(state: Path | None) -> None:
    """Stop the controller of a state directory; its jobs resume when it is started again."""
    from hansa.common.process.state import stop as stop_daemon

    folder, _ = places(state)
    stopped = stop_daemon(folder, "controller")
    click.echo("controller stopped" if stopped else f"no controller is running on {folder}")


@controller.command()
@state_option
@lines_option
@follow_option
def logs(state: Path | None, lines: int, following: bool) -> None:
    """Show the log of a controller that was started with --daemon."""
    from hansa.common.process.state import log_file

    folder, _ = places(state)
    show_log(log_file(folder, "controller"), lines, following)


@controller.command()
@controller_option
def health(controller: Endpoint) -> None:
    """Query a controller's health service, for probes.

    The exit code is 1 if the controller is up but cannot use its store, and 3 if it cannot be reached.
    """
    from hansa.common.client.connection import ask_health

    if not run_async(ask_health(controller)):
        raise HansaError(f"the controller at {controller} cannot use its store")
    click.echo("serving")


@controller.command()
@controller_option
@json_option
def status(controller: Endpoint, as_json: bool) -> None:
    """Show a controller's identity and status."""
    from hansa.common.client.asynchronous import AsyncClient
    from hansa.common.values.views import StatusView

    async def ask() -> StatusView:
        async with AsyncClient(controller) as client:
            return await client.status()

    view = run_async(ask())
    if as_json:
        print_json(view.model_dump())
        return
    jobs = ", ".join(f"{count} {status}" for status, count in sorted(view.jobs.items())) or "none"
    click.echo(f"controller {view.address}  (hansa {view.version}, pid {view.pid}, since {view.since})")
    click.echo(f"  sites   {view.sites} connected")
    click.echo(f"  jobs    {jobs}")
    click.echo(f"  store   {view.store}")
    click.echo(f"  state   {view.state}")
    click.echo(f"  memory  peak {view.peak_memory_mib:.0f} MiB")
