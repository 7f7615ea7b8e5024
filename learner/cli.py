"""`hansa learner start|stop|status|logs|model`."""

from pathlib import Path
from typing import Any

import click

from hansa.common.site.cli import personal_option, site_folder, site_group
from hansa.common.torch.threads import wait_without_spinning
from hansa.common.ui.options import Site, json_option, print_json, state_option
from hansa.common.values.errors import InvalidInput, NotFound
from hansa.common.values.ids import JobId
from hansa.common.values.wording.words import listed


def _daemon(*arguments: Any) -> Any:
    from hansa.learner.daemon import Learner

    return Learner(*arguments)


def _check_launcher(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    from hansa.learner.launching.template import checked

    return checked(given) if given else None


learner = site_group("learner", _daemon, check_launcher=_check_launcher)


@learner.command(hidden=True)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def task(folder: Path) -> None:
    """Do one training task for a learner; its --launcher starts this."""
    from hansa.common.process import logs
    from hansa.common.site.cli import set_up_torch

    logs.set_up()
    wait_without_spinning()
    from hansa.learner.launching.parcel import Parcel  # loads PyTorch

    order = Parcel(folder).settings()
    set_up_torch(order.device, order.threads)
    from hansa.learner.launching.worker import train_parcel

    train_parcel(folder)


@learner.command()
@click.argument("job_id", metavar="JOB")
@click.option("--site", type=Site(), envvar="HANSA_SITE", required=True, help="The site's name.")
@state_option
@personal_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The safetensors file to write; only its owner can read it.",
)
@click.option(
    "--community",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that `hansa job model` wrote: its other tensors are added.",
)
@json_option
def model(
    job_id: str,
    site: str,
    state: Path | None,
    personal: Path | None,
    output: Path,
    community: Path | None,
    as_json: bool,
) -> None:
    """Write a job's personal model as a safetensors file, at the site itself.

    JOB is the job's id. The file has the tensors that are the site's own, after its last update that was
    accepted. Nothing is sent anywhere.
    """
    from hansa.common.models.checkpoints import about, load_checkpoint
    from hansa.common.models.frames import Layout, views
    from hansa.common.models.tensor_files import write_tensors
    from hansa.common.site.daemon import PERSONAL
    from hansa.common.site.files import DiskFiles
    from hansa.common.site.personal import TASK, PersonalFolder

    folder = PersonalFolder(DiskFiles((personal or site_folder(state, site) / PERSONAL).expanduser()))
    own = folder.committed(JobId(job_id))
    if own is None:
        known = f"; there are some of {listed(folder.jobs())}" if folder.jobs() else ""
        raise NotFound(f"this site has no tensors of its own of job {job_id!r}{known}")
    manifest, payload = folder.model(JobId(job_id))
    spec, arrays = manifest.spec, views(Layout(manifest.spec), payload)
    if community is not None:
        shared, numbers = load_checkpoint(community)
        spec, arrays = shared.spec.joined(spec), views(Layout(shared.spec), numbers) | arrays
    try:
        write_tensors(output, arrays, about(spec) | {TASK: own.task}, 0o600)
    except OSError as error:
        raise InvalidInput(f"-o {output}: cannot be written: {error.strerror or error}") from None
    if as_json:
        print_json({"file": str(output), "tensors": len(arrays), "task": own.task})
    else:
        count = f"{len(arrays)} tensors, {len(own.arrays)} of them the site's own"
        click.echo(f"{output}: {count}, after task {own.task}")
