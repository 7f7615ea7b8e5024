"""The sites of a simulation and their data, as the `data:` section of a job says."""

from dataclasses import dataclass
from pathlib import Path

from hansa.common.app import App, load_app
from hansa.common.data.division import divide
from hansa.common.data.shards import TEST as TEST_FILE
from hansa.common.data.shards import write_shards
from hansa.common.data.site_files import agreed
from hansa.common.data.sources import SOURCES
from hansa.common.job.spec import DataSpec, JobSpec, SitesSpec
from hansa.common.site.rehearsal import rehearse
from hansa.common.values.errors import InvalidInput, InvalidJob
from hansa.simulation.data import TEST, TRAINING, FileForEach, RowsOfASet, VirtualData


@dataclass(frozen=True)
class Prepared:
    """A job as it is simulated, its app, and its sites' data."""

    spec: JobSpec
    app: App
    data: VirtualData


def prepare(spec: JobSpec, sites: int | None, folder: Path) -> Prepared:
    """Divide a job's data among `sites` sites, or as many as the job says; the job then waits for all."""
    if spec.data is None:
        raise InvalidJob("data: is required; it names the sites' data, such as data: {source: digits}")
    app = load_app(spec.app)
    if spec.data.files is not None:
        if sites is not None:
            raise InvalidInput("--sites: data.files says which site has which data; give data.source")
        paths = {site: Path(path) for site, path in spec.data.files.items()}
        data: VirtualData = FileForEach(paths, agreed(app, paths))
    else:
        data = _divided(spec, spec.data, app, sites, folder)
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"sites": len(data.names)})})
    count, together = len(data.names), spec.sites.together
    if together > count:
        raise InvalidInput(f"sites.together: {count} sites cannot make models of {together}")
    rehearse(app, data.examples(app, 0, TRAINING), data.path(0), "cpu")
    everybody = SitesSpec(min=count, together=together, wait=max(spec.sites.wait, 60))
    return Prepared(spec.model_copy(update={"sites": everybody}), app, data)


def _divided(spec: JobSpec, data: DataSpec, app: App, sites: int | None, folder: Path) -> VirtualData:
    """Split a data set across the sites."""
    schema = None if data.source in SOURCES else app  # it may name the columns to use, and its classes
    if app.data is None:
        return RowsOfASet.written(divide(data, sites, spec.seed, app=schema), folder / "data")
    # An app that reads its data itself needs a file for each site.
    paths = write_shards(data, sites, spec.seed, folder / "data", app=schema)
    split = TEST if (folder / "data" / TEST_FILE).exists() else "validation"
    return FileForEach({path.stem: path for path in paths}, split)
