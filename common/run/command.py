"""`hansa run`: a whole federation on this machine, as real processes."""

import asyncio
import math
from collections.abc import Iterable
from pathlib import Path

import click

from hansa.common.job.file import load_job
from hansa.common.run.central import central_name
from hansa.common.run.federation import LocalFederation
from hansa.common.run.folder import new_run
from hansa.common.run.interruption import Interrupted
from hansa.common.run.site_data import located, prepare_data
from hansa.common.run.summary import print_summary, print_what_is_left
from hansa.common.torch.installed import require_torch
from hansa.common.ui.job.job_documents import exit_code, outcome
from hansa.common.ui.job.job_warnings import warn_of_shortfalls
from hansa.common.ui.options import print_json
from hansa.common.values.errors import HansaError, InvalidInput, InvalidJob, Taken

INTERRUPTED = 130  # the exit code, whichever signal it was


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--sites", type=click.IntRange(1, 1000), help="How many sites (default: the job file's data.sites)."
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a field, such as train.epochs=2."
)
@click.option(
    "--slow",
    "slowed",
    multiple=True,
    metavar="SITE=FACTOR",
    help="Slow a site's training down by FACTOR. May be repeated.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="CPU threads for PyTorch in each learner and evaluator. Another number may change the last bits.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Where PyTorch computes in every learner and evaluator, such as cuda:0.",
)
@click.option(
    "--central",
    is_flag=True,
    help="Train centrally, for comparison: one site holds all data; its batches are as large as all sites'.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results and logs go (default: a new folder below .hansa/runs).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object at the end instead of the live view and summary.",
)
def run(
    file: Path,
    sites: int | None,
    changes: tuple[str, ...],
    slowed: tuple[str, ...],
    threads: int,
    device: str,
    central: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a whole federation on this machine: controller, learners and evaluators as real processes.

    The data: section of the job file names the sites' data. The results are in a folder that is printed at
    the end: model.safetensors, report.json, and job.resolved.yaml, the job with every default filled in.
    Ctrl-C cancels the job and keeps its results so far; a second Ctrl-C ends everything at once.
    """
    require_torch("hansa run")
    from hansa.common.ui.job.layers import (
        require_fitting_layers,  # slow to load, and not needed to print help
    )

    spec = load_job(file, changes, here=True)
    if spec.data is None:
        raise InvalidJob(
            f"{file}: data: is required by `hansa run`; it names the sites' data,"
            " such as data: {source: digits}"
        )
    require_fitting_layers(spec, file)
    factors = _factors(slowed)
    if device != "cpu":
        from hansa.common.torch.devices import require_device

        require_device(device)
    name = central_name(spec) if central else spec.name
    folder = (out or new_run(name)).absolute()
    if (folder / "controller").exists():
        raise Taken(f"--out {folder}: it holds the results of another run; choose a new folder")
    data = prepare_data(located(spec, file), sites, folder, central)
    federation = LocalFederation(data, folder, factors, central, threads, device)
    try:
        view = asyncio.run(federation.run(quiet=as_json))
    except (Interrupted, HansaError) as error:
        if not federation.interrupted:
            raise
        if isinstance(error, HansaError):
            click.echo(f"hansa: {error}", err=True)
        click.echo(f"\nstopped; every process has ended, the state is kept in {folder}", err=True)
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        print_json(outcome(view))
    else:
        print_summary(view, folder, file, spec, data.split)
        warn_of_shortfalls(view)
    if federation.interrupted and view.status != "completed":  # it may just have ended by itself
        print_what_is_left(view, folder)
        raise SystemExit(INTERRUPTED)
    raise SystemExit(exit_code(view))


def _factors(words: Iterable[str]) -> dict[str, float]:
    """Parse SITE=FACTOR options."""
    factors = {}
    for word in words:
        site, _, number = word.partition("=")
        try:
            factors[site] = float(number)
        except ValueError:
            factors[site] = 0.0
        if not 1 <= factors[site] < math.inf:
            raise InvalidInput(
                f"--slow {word}: write SITE=FACTOR with a factor of at least 1, such as site-1=5"
            )
    return factors
