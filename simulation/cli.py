"""`hansa simulate`: a job with virtual sites, in virtual time."""

from pathlib import Path

import click

from hansa.common.client.rows import check_table, version_rows, write_rows
from hansa.common.job.file import load_job
from hansa.common.run.site_data import located
from hansa.common.torch.installed import require_torch
from hansa.common.torch.threads import wait_without_spinning
from hansa.common.ui.job.job_documents import exit_code, outcome
from hansa.common.ui.options import Size, print_json
from hansa.common.values.bounds import SITES
from hansa.common.values.errors import InvalidInput, InvalidJob
from hansa.common.values.views import JobView
from hansa.simulation.folders import new_folder, require_new
from hansa.simulation.options import Options

INTERRUPTED = 130  # the exit code, whichever signal it was


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--sites", type=click.IntRange(1, SITES), help="How many sites (default: the job file's data.sites)."
)
@click.option(
    "--workers",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Worker processes; 0: this process does everything. The results are the same.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Let actors on a Ray cluster do the work: HOST:PORT of its head, or auto for a cluster on this"
    " machine. --workers says how many (default: one for each CPU). Needs hansa[ray].",
)
@click.option(
    "--batched",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Train small clients in blocks, wherever that gives the same bits, or always one by one.",
)
@click.option(
    "--memory",
    type=Size(least=16 << 20),
    default="4GiB",
    show_default=True,
    help="Memory for models and for what sites remember; what exceeds it goes to the folder of the results.",
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, such as train.epochs=2."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results go (default: a new folder below .hansa/simulations).",
)
@click.option(
    "--resume",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Go on with a simulation that was interrupted, from the folder of its results.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="JOURNAL",
    help="Let everything happen in the order of a deployed job: a controller's state directory or journal.",
)
@click.option("--job", metavar="JOB", help="Which job of that journal, if it has several.")
@click.option(
    "--table",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a row for each version into this .csv or .parquet file.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object at the end instead of the live view and summary.",
)
def simulate(
    file: Path | None,
    sites: int | None,
    workers: int,
    ray: str | None,
    batched: str,
    memory: int,
    changes: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    replay: Path | None,
    job: str | None,
    table: Path | None,
    as_json: bool,
) -> None:
    """Run a job with virtual sites: the same engine, rules and training, without processes and network.

    Time is virtual: the simulate: section of the job file says how fast sites and their connections are.
    Rules with rounds give the same models as a federation with the same job and data, bit for bit. The
    results are in a folder that is printed at the end, as after `hansa run`. Ctrl-C ends the job and keeps
    its results so far; --resume goes on with it, also after a crash, from a save that is at most a minute
    old.
    """
    require_torch("hansa simulate")
    if table is not None:
        check_table(table)
    wait_without_spinning()
    if ray is not None:
        from hansa.simulation.crew.cluster import require_ray

        require_ray(ray)
    options = Options(
        workers=workers, ray=ray, memory=memory, batched=batched == "auto", replay=replay, job=job
    )
    if job is not None and replay is None:
        raise InvalidInput("--job: it names a job of the journal that --replay names")
    if resume is not None:
        if file is not None or sites is not None or changes or out is not None or replay is not None:
            raise InvalidInput(
                "--resume: the job, its sites and its folder are those of the simulation so far"
            )
        from hansa.simulation.show import resume_and_show

        view, interrupted = resume_and_show(resume.absolute(), as_json, options)
    else:
        view, interrupted = _simulate(file, sites, changes, out, as_json, options)
    if table is not None:
        write_rows(version_rows(view), table)
    if as_json:
        print_json(outcome(view))
    raise SystemExit(INTERRUPTED if interrupted else exit_code(view))


def _simulate(
    file: Path | None,
    sites: int | None,
    changes: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    options: Options,
) -> tuple[JobView, bool]:
    if file is None:
        raise InvalidInput("name a job file, or a folder with --resume")
    spec = load_job(file, changes, here=True)
    if spec.data is None:
        raise InvalidJob(
            f"{file}: data: is required by `hansa simulate`; it names the sites' data,"
            " such as data: {source: digits}"
        )
    folder = (out or new_folder(spec.name)).absolute()
    require_new(folder)
    # PyTorch takes a second to load, and help does not need it.
    from hansa.common.ui.job.layers import require_fitting_layers
    from hansa.simulation.show import run_and_show

    require_fitting_layers(spec, file)
    return run_and_show(located(spec, file), folder, sites, as_json, options)
