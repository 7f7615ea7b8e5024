"""`hansa job events`: what happened in a job, in plain words."""

from collections.abc import AsyncIterator

import click

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.job.watching import Watching
from hansa.common.ui.options import controller_option, json_option, run_async
from hansa.common.values.documents import escaped
from hansa.common.values.views import EventView


@click.command("events")
@click.argument("job_id", metavar="JOB")
@controller_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    help="Only events after the one with this number.",
    metavar="N",
)
@json_option
def command(job_id: str, controller: Endpoint, follow: bool, after: int, as_json: bool) -> None:
    """Tell what happened in a job, oldest first. With --json every line is a JSON document.

    With --follow the command goes on when the controller is restarted, without gaps or repeats.
    """
    watching = Watching(controller, job_id)
    events = watching.events(after) if follow else _so_far(controller, job_id, after)
    run_async(_print(events, as_json), watching.farewell)


async def _so_far(controller: Endpoint, job: str, after: int) -> AsyncIterator[EventView]:
    async with AsyncClient(controller) as client:
        async for event in client.events(job, after):
            yield event


async def _print(events: AsyncIterator[EventView], as_json: bool) -> None:
    async for event in events:
        if as_json:
            click.echo(escaped(event.model_dump()))
        else:
            click.echo(f"{event.sequence:5d}  {event.time}  {event.kind:<11}  {event.text}")
