"""`hansa site list`."""

import click

from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.options import controller_option, json_option, print_json, print_table, run_async
from hansa.common.values.views import DaemonView
from hansa.common.values.words import listed


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
