"""The sites' data for a federation on one machine: found or written before anything is started."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.common.job.spec import DataSpec, JobSpec
from hansa.common.run.central import centralised
from hansa.common.values.errors import InvalidInput, InvalidJob

if TYPE_CHECKING:  # numpy need not be loaded to print help
    from hansa.common.data.partition.folds import Fold
    from hansa.common.data.site_files import Split


@dataclass(frozen=True)
class SiteData:
    """The files of sites, which daemons they have, and the job as it is run with these data."""

    spec: JobSpec
    files: Mapping[str, Path]
    learners: Sequence[str]
    evaluators: Mapping[str, "Split"]  # sites with an evaluator, and what it evaluates on
    split: "Split"  # what community models are evaluated on


def located(spec: JobSpec, file: Path) -> JobSpec:
    """Find the app, and data that are files, from this folder or from beside the job file."""
    data = spec.data
    assert data is not None
    spec = _with_availability(spec, file.parent)
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


def _with_availability(spec: JobSpec, folder: Path) -> JobSpec:
    """Find the file that says when the sites of a simulation are connected."""
    simulate = spec.simulate
    if simulate is None or not isinstance(simulate.availability, str):
        return spec
    here, beside = Path(simulate.availability), folder / simulate.availability
    if not here.exists() and not beside.exists():
        return spec  # a simulation says so; others ignore it
    found = str((here if here.exists() else beside).absolute())
    return spec.model_copy(update={"simulate": simulate.model_copy(update={"availability": found})})


def prepare_data(spec: JobSpec, count: int | None, folder: Path, central: bool = False) -> SiteData:
    """Find or write the file of each site; the job then waits for all sites that train.

    `count` sites instead of those that the job asks for; `central`: one site holds all training data.
    """
    data = spec.data
    assert data is not None
    if data.files is not None:
        source = _own_files(spec, data.files, count, folder, central)
    else:
        source = _written_files(spec, data, count, folder, central)
    from hansa.common.data.cross_validation import assigned, roles_of

    spec = assigned(source.spec, source.fold)
    roles = roles_of(spec, source.fold, source.split)
    return SiteData(spec, source.files, roles.learners, roles.evaluators, roles.split)


@dataclass(frozen=True)
class _Source:
    """The files of all sites, the split that evaluators can use, and what each site does."""

    spec: JobSpec
    files: Mapping[str, Path]
    split: "Split"
    fold: "Fold[str]"


def _written_files(spec: JobSpec, data: DataSpec, count: int | None, folder: Path, central: bool) -> _Source:
    """Split a data set across the sites."""
    from hansa.common.data.cross_validation import fold_of
    from hansa.common.data.shards import POOLED, TEST, write_pooled, write_shards
    from hansa.common.data.sources import SOURCES

    where, app = folder / "data", None
    fold_by_name = partial(fold_of, spec)
    if data.source not in SOURCES:
        from hansa.common.app import load_app

        app = load_app(spec.app)  # it may name the columns to use, and its classes
    if central or data.central:
        paths, fold = write_pooled(data, count, spec.seed, where, app=app, fold=fold_by_name)
        sites = len(paths) - 1 + len(fold.train)
        if not data.central:  # the resolved job of a central run is the job of one site already
            spec = centralised(spec, len(fold.train))
        fold = replace(fold, train=(POOLED,))
    else:
        paths = write_shards(data, count, spec.seed, where, app=app)
        sites, fold = len(paths), fold_by_name([path.stem for path in paths])
    resolved = data.model_copy(update={"sites": sites, "central": central or data.central})
    split: Split = "test" if (where / TEST).exists() else "validation"  # without test data
    files = {path.stem: path for path in paths}
    return _Source(spec.model_copy(update={"data": resolved}), files, split, fold)


def _own_files(
    spec: JobSpec, files: Mapping[str, str], count: int | None, folder: Path, central: bool
) -> _Source:
    """Use the sites' own files as they are, after checking that they can be read and fit one another."""
    if count is not None or central:
        option = "--central" if central else "--sites"
        raise InvalidInput(f"{option}: data.files says which site has which data; {option} needs data.source")
    from hansa.common.app import load_app
    from hansa.common.data.cross_validation import fold_of
    from hansa.common.data.site_files import agreed

    paths = {site: Path(path) for site, path in files.items()}
    fold = fold_of(spec, list(paths))
    split = agreed(load_app(spec.app), paths)
    folder.mkdir(parents=True, exist_ok=True)
    return _Source(spec, paths, split, fold)
