"""`hansa site list|logs`."""

import click

from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.options import Site, controller_option, json_option, print_json, print_table, run_async
from hansa.common.values.views import DaemonView, LogView
from hansa.common.values.wording.words import listed


@click.group()
def site() -> None:
    """Inspect the fleet."""


@site.command("list")
@controller_option
@json_option
def list_sites(controller: Endpoint, as_json: bool) -> None:
    """List the daemons of all sites and their tasks; for those that are away, since when and why."""
    from hansa.common.client.asynchronous import AsyncClient

    async def ask() -> list[DaemonView]:
        async with AsyncClient(controller) as client:
            return await client.sites()

    views = run_async(ask())
    if as_json:
        print_json([view.model_dump() for view in views])
        return
    rows = [
        (
            v.site,
            v.role,
            f"{v.state}: {v.why}" if v.why else v.state,
            v.since,
            listed(v.doing, 3) or "-",
            "; ".join(f"{a}: {s}" for a, s in v.apps.items()),
        )
        for v in views
    ]
    print_table(("site", "daemon", "state", "since", "tasks", "apps"), rows, "no daemon is connected")


@site.command()
@click.argument("name", metavar="SITE", type=Site())
@controller_option
@click.option(
    "--role", type=click.Choice(("learner", "evaluator")), help="Which daemon (default: the learner)."
)
@click.option(
    "--lines", type=click.IntRange(1, 1000), help="At most so many lines (default: all that the site shows)."
)
@json_option
def logs(name: str, controller: Endpoint, role: str | None, lines: int | None, as_json: bool) -> None:
    """Show the last lines of a daemon's log, if the site's policy allows it (`logs = 200`).

    Paths and secrets are hidden, and what apps log is left out.
    """
    from hansa.common.client.asynchronous import AsyncClient

    async def ask() -> LogView:
        async with AsyncClient(controller) as client:
            return await client.logs(name, role or "", lines or 0)

    view = run_async(ask())
    if as_json:
        print_json(view.model_dump())
        return
    for line in view.lines:
        click.echo(line)
    if not view.lines:
        click.echo(f"the {view.role} of {view.site} has logged nothing yet", err=True)
