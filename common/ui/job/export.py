"""`hansa job export`: a job's versions as a table, or in the tracker that people already have."""

from pathlib import Path

import click

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.rpc.channel import Endpoint
from hansa.common.trackers.base import Tracker, exported
from hansa.common.ui.job.watching import Watching
from hansa.common.ui.options import controller_option, run_async
from hansa.common.values.errors import InvalidInput
from hansa.common.values.views import JobView
from hansa.common.values.wording.words import counted

STOPPED = "stopped; what has been exported is kept, and the same command exports the rest"
KINDS = "csv:FILE, jsonl:FILE, tensorboard:DIR or mlflow:http://HOST:PORT"


@click.command("export")
@click.argument("job_id", metavar="JOB")
@click.option("--to", "target", required=True, metavar="KIND:PLACE", help=f"Where to: {KINDS}.")
@controller_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
def command(job_id: str, target: str, controller: Endpoint, follow: bool) -> None:
    """Export the versions of a job, with a run for each site where the tracker has runs.

    Run again, the command exports only what is new. With --follow it goes on until the job has ended, also
    while the controller restarts. MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and _PASSWORD) and
    MLFLOW_EXPERIMENT_NAME are used as by MLflow itself.
    """
    with _tracker(target) as tracker:
        watching = Watching(controller, job_id)
        count, job = run_async(_export(controller, job_id, tracker, follow, watching), lambda: STOPPED)
    click.echo(f"{counted(count, 'version')} of job {job.job} ({job.name}) exported to {target}")


async def _export(
    controller: Endpoint, job_id: str, tracker: Tracker, follow: bool, watching: Watching
) -> tuple[int, JobView]:
    async with AsyncClient(controller) as client:
        view = await client.show(job_id)
        after = tracker.open(view)
        if follow:
            count = await exported(watching.versions(view.job, after), tracker)
            view = await client.show(view.job)
        else:
            count = 0
            for version in view.history:
                if not (version.settled or view.ended):
                    break
                if version.version > after:
                    tracker.take(version)
                    count += 1
    if view.ended:
        tracker.finish(view)
    return count, view


def _tracker(target: str) -> Tracker:
    """Return the tracker that `--to` names."""
    kind, _, place = target.partition(":")
    if kind not in ("csv", "jsonl", "tensorboard", "mlflow") or not place:
        raise InvalidInput(f"--to {target}: write {KINDS}")
    if kind == "mlflow":
        from hansa.common.trackers.mlflow import MlFlow

        return MlFlow(place)
    if kind == "tensorboard":
        from hansa.common.trackers.tensorboard import TensorBoard

        return TensorBoard(Path(place))
    from hansa.common.trackers.files import Csv, JsonLines

    return (Csv if kind == "csv" else JsonLines)(Path(place))
