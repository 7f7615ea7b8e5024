"""The sites of a simulation and their data, as the `data:` section of a job says."""

from dataclasses import dataclass
from pathlib import Path

from hansa.common.app import App, load_app
from hansa.common.data.cross_validation import Roles, assigned, fold_of, roles_of
from hansa.common.data.division import divide
from hansa.common.data.shards import TEST as TEST_FILE
from hansa.common.data.shards import write_shards
from hansa.common.data.site_files import Split, agreed
from hansa.common.data.sources import SOURCES
from hansa.common.job.spec import DataSpec, JobSpec
from hansa.common.site.rehearsal import rehearse
from hansa.common.values.errors import InvalidInput, InvalidJob
from hansa.common.values.ids import SiteName
from hansa.common.values.wording.words import suggestion
from hansa.simulation.sites.data import TEST, TRAINING, FileForEach, RowsOfASet, VirtualData


@dataclass(frozen=True)
class Prepared:
    """A job as it is simulated, its app, and its sites' data."""

    spec: JobSpec
    app: App
    data: VirtualData

    @property
    def roles(self) -> Roles:
        """Which virtual sites have a learner, and which an evaluator."""
        return roles_of(self.spec, fold_of(self.spec, self.data.names), self.data.split)


def prepare(spec: JobSpec, sites: int | None, folder: Path) -> Prepared:
    """Divide a job's data among `sites` sites, or as many as the job says; it waits for all that train."""
    if spec.data is None:
        raise InvalidJob("data: is required; it names the sites' data, such as data: {source: digits}")
    if spec.data.central:
        raise InvalidInput("data.central: central training has no sites to simulate; use `hansa run`")
    if spec.train.max_seconds is not None:
        raise InvalidInput(
            "train.max_seconds: the time of a simulation is virtual, and this is real time; use pace: {kind:"
            " semisync}, or train.batches"
        )
    app = load_app(spec.app)
    if spec.data.files is not None:
        if sites is not None:
            raise InvalidInput("--sites: data.files says which site has which data; give data.source")
        paths = {site: Path(path) for site, path in spec.data.files.items()}
        data: VirtualData = FileForEach(paths, agreed(app, paths))
    else:
        data = _divided(spec, spec.data, app, sites, folder)
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"sites": len(data.names)})})
    for site in spec.simulate.slow.sites if spec.simulate else ():
        if site not in data.names:
            raise InvalidJob(f"simulate.slow.sites: there is no site {site}{suggestion(site, data.names)}")
    rehearse(app, data.examples(app, 0, TRAINING), data.path(0), "cpu")
    fold = fold_of(spec, data.names)
    data.held_out = frozenset(map(SiteName, (*fold.validation, *fold.test)))
    job = assigned(spec, fold)
    if spec.simulate and spec.simulate.availability is not None:  # the job cannot wait for all of them
        if spec.sites.min > len(fold.train):
            raise InvalidInput(f"sites.min: only {len(fold.train)} sites train")
        as_written = job.sites.model_copy(update={"min": spec.sites.min, "wait": spec.sites.wait})
        job = job.model_copy(update={"sites": as_written})
    return Prepared(job, app, data)


def _divided(spec: JobSpec, data: DataSpec, app: App, sites: int | None, folder: Path) -> VirtualData:
    """Split a data set across the sites."""
    schema = None if data.source in SOURCES else app  # it may name the columns to use, and its classes
    if app.data is None:
        return RowsOfASet.written(divide(data, sites, spec.seed, app=schema), folder / "data")
    # An app that reads its data itself needs a file for each site.
    paths = write_shards(data, sites, spec.seed, folder / "data", app=schema)
    split: Split = TEST if (folder / "data" / TEST_FILE).exists() else "validation"
    return FileForEach({path.stem: path for path in paths}, split)
