"""`hansa job report`: what a job, a run, a simulation or a sweep has shown, as one HTML file."""

import os
from pathlib import Path

import click

from hansa.common.report.job import job_page
from hansa.common.report.layout import write_page
from hansa.common.report.material import PAGE, REPORT, Material, read_material
from hansa.common.report.sweep import SWEEP, read_sweep, sweep_page
from hansa.common.rpc.channel import Endpoint
from hansa.common.ui.job.command import ask
from hansa.common.ui.options import controller_option
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.sizes import amount


@click.command("report")
@click.argument("job", metavar="JOB")
@controller_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write (default: report.html in the folder, or JOB.html).",
)
def command(job: str, controller: Endpoint, output: Path | None) -> None:
    """Write a report of a job: one HTML file that needs no network and no JavaScript.

    JOB is an id, the beginning of one, a name, or the folder of a `hansa run`, `simulate` or
    `sweep`. A job that is still running is reported as far as it is.
    """
    folder = Path(job)
    swept = (folder / SWEEP).exists()
    if swept or (folder / REPORT).exists():
        page = sweep_page(read_sweep(folder)) if swept else job_page(read_material(folder))
        output = output or folder / PAGE
    elif folder.is_dir() and os.sep in job:
        raise InvalidInput(
            f"{job}: there is no {REPORT} or {SWEEP} in it;"
            " is it the folder of a `hansa run`, `simulate` or `sweep` that has ended?"
        )
    else:
        view = ask(controller, lambda client: client.show(job))
        page = job_page(Material(view))
        output = output or Path(f"{Path(job).name}.html")
    write_page(output, page)
    click.echo(f"{output}: {amount(output.stat().st_size)}, for any browser")
