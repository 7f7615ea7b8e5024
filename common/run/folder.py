"""What `hansa run` leaves in its folder: the report, the last model, and the job as it was run."""

import os
import time
from pathlib import Path
from typing import Any

import yaml

from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import DataSpec, JobSpec
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.report.job import job_page
from hansa.common.report.material import PAGE, REPORT, RESOLVED, material_of
from hansa.common.ui.job.job_documents import details, without_history
from hansa.common.values.documents import pieces
from hansa.common.values.resolved import MADE_WITH
from hansa.common.values.views import JobView

MODEL = "model.safetensors"
RUNS = Path(".hansa/runs")
HEAD = """\
# The job as it was run, with every default filled in. It is a job file: `hansa run` with it runs the job
# again. `made_with` only says what it was run with.
"""


def new_run(name: str, above: Path = RUNS) -> Path:
    """Return where the results of a run go if nobody says where."""
    return above / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


async def keep_results(
    folder: Path, client: AsyncClient, job: str, spec: JobSpec, threads: int | None = None
) -> JobView:
    """Write a job's report and the models that it has kept, if there are any; return its last view.

    The report includes what only this machine knows: the data, and the number of PyTorch's threads at a site
    (None: the sites' owners decide).
    """
    view = await client.show(job)
    for version in view.kept:
        save_checkpoint(folder / model_file(version, view), *await client.model(view.job, version))
    keep_report(folder, view, spec, threads)
    return view


def model_file(version: int, view: JobView) -> str:
    """Return the name of the file for a version's model: the last one needs no number."""
    return MODEL if version == view.version else f"model-{version}.safetensors"


def keep_report(
    folder: Path, view: JobView, spec: JobSpec, threads: int | None = None, **more: object
) -> None:
    """Write a job's report, for programs and as a page, with what only this machine knows and `more`.

    That is where the data came from, and how many threads PyTorch had at each site.
    """
    here: dict[str, object] = {"data": _data(spec.data) if spec.data else None}
    here |= {} if threads is None else {"threads": threads}
    report = without_history(view) | here | more
    with (folder / REPORT).open("w", encoding="utf-8") as file:
        file.writelines(pieces(report, "history", (entry.model_dump() for entry in view.history)))
        file.write("\n")
    page = job_page(material_of(details(view) | here | more, str(folder)))
    (folder / PAGE).write_text(page, encoding="utf-8")


def keep_resolved(folder: Path, view: JobView, spec: JobSpec, threads: int | None = None) -> None:
    """Write the job as the controller understood it, with the data and files that only this machine knows."""
    if view.resolved is None:
        return
    job: dict[str, Any] = dict(view.resolved.job) | {"app": _absolute(spec.app)}
    job |= {name: file for name, file in (("init", spec.init), ("reference", spec.reference)) if file}
    if spec.data is not None:
        job["data"] = _data(spec.data)
    if spec.simulate is not None:
        job["simulate"] = spec.simulate.model_dump(mode="json")
    ordered = {name: job[name] for name in JobSpec.model_fields if name in job}
    known = {} if threads is None else {"threads": threads}
    ordered[MADE_WITH] = view.resolved.made_with.model_dump(mode="json") | known
    text = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=120)
    (folder / RESOLVED).write_text(HEAD + text, encoding="utf-8")


def _absolute(app: str) -> str:
    """Return a reference to an app that works in every folder of this machine."""
    place, _, attribute = app.rpartition(":")
    return f"{Path(place).absolute()}:{attribute}" if place.endswith(".py") else app


def _data(data: DataSpec) -> dict[str, Any]:
    """Return where the sites' data came from; paths are absolute."""
    from hansa.common.data.partition import parse_partition
    from hansa.common.data.sources import SOURCES

    if data.source is None:  # the sites' own files
        own = {"files": {site: str(Path(path).absolute()) for site, path in (data.files or {}).items()}}
        return own | ({"holdout": data.holdout.model_dump()} if data.holdout else {})
    document, path = data.model_dump(mode="json", exclude_none=True), Path(data.source).expanduser()
    if data.source not in SOURCES and path.exists():
        document["source"] = str(path.absolute())
    return document | {"partition": parse_partition(data.partition).model_dump(mode="json", by_alias=True)}
