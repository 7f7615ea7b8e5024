"""The sites' data for a federation on one machine: found or written before anything is started."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.common.job.spec import DataSpec, JobSpec, SitesSpec
from hansa.common.run.central import centralised
from hansa.common.values.errors import InvalidInput, InvalidJob

if TYPE_CHECKING:
    from hansa.common.data.site_files import Split  # numpy need not be loaded to print help


@dataclass(frozen=True)
class SiteData:
    """The file of each site, the split that evaluators use, and the job as it is run with these data."""

    spec: JobSpec
    files: Mapping[str, Path]
    split: "Split"


def located(spec: JobSpec, file: Path) -> JobSpec:
    """Find the app, and data that are files, from this folder or from beside the job file."""
    data = spec.data
    assert data is not None
    place, _, attribute = spec.app.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        if not (file.parent / place).is_file():
            raise InvalidJob(f"{file}: app: there is no file {place}, neither here nor beside the job file")
        spec = spec.model_copy(update={"app": f"{os.path.relpath(file.parent / place)}:{attribute}"})
    if data.files is not None:
        from hansa.common.data.site_files import found_files

        files = {site: str(path) for site, path in found_files(data.files, file.parent).items()}
        return spec.model_copy(update={"data": data.model_copy(update={"files": files})})
    from hansa.common.data.sources import SOURCES

    beside = file.parent / str(data.source)
    if data.source not in SOURCES and not Path(str(data.source)).exists() and beside.exists():
        spec = spec.model_copy(update={"data": data.model_copy(update={"source": str(beside)})})
    return spec


def prepare_data(spec: JobSpec, count: int | None, folder: Path, central: bool = False) -> SiteData:
    """Find or write the file of each site; the job then waits for all sites.

    `count` sites instead of those that the job asks for; `central`: one site holds all data.
    """
    data = spec.data
    assert data is not None
    if data.files is not None:
        prepared = _own_files(spec, data.files, count, folder, central)
    else:
        prepared = _written_files(spec, data, count, folder, central)
    sites, together = len(prepared.files), spec.sites.together
    if together > sites:
        raise InvalidInput(f"sites.together: {sites} sites cannot make models of {together}")
    least = SitesSpec(min=sites, together=together, wait=max(spec.sites.wait, 60))
    return SiteData(prepared.spec.model_copy(update={"sites": least}), prepared.files, prepared.split)


def _written_files(spec: JobSpec, data: DataSpec, count: int | None, folder: Path, central: bool) -> SiteData:
    """Split a data set across the sites."""
    from hansa.common.data.shards import TEST, write_pooled, write_shards
    from hansa.common.data.sources import SOURCES

    where, app = folder / "data", None
    if data.source not in SOURCES:
        from hansa.common.app import load_app

        app = load_app(spec.app)  # it may name the columns to use, and its classes
    if central or data.central:
        path, sites = write_pooled(data, count, spec.seed, where, app=app)
        paths = [path]
        if not data.central:  # the resolved job of a central run is the job of one site already
            spec = centralised(spec, sites)
    else:
        paths = write_shards(data, count, spec.seed, where, app=app)
        sites = len(paths)
    resolved = data.model_copy(update={"sites": sites, "central": central or data.central})
    split: Split = "test" if (where / TEST).exists() else "validation"  # without test data
    files = {path.stem: path for path in paths}
    return SiteData(spec.model_copy(update={"data": resolved}), files, split)


def _own_files(
    spec: JobSpec, files: Mapping[str, str], count: int | None, folder: Path, central: bool
) -> SiteData:
    """Use the sites' own files as they are, after checking that they can be read and fit one another."""
    if count is not None or central:
        option = "--central" if central else "--sites"
        raise InvalidInput(f"{option}: data.files says which site has which data; {option} needs data.source")
    from hansa.common.app import load_app
    from hansa.common.data.site_files import agreed

    paths = {site: Path(path) for site, path in files.items()}
    split = agreed(load_app(spec.app), paths)
    folder.mkdir(parents=True, exist_ok=True)
    return SiteData(spec, paths, split)
