"""Before it starts anything, `hansa run` finds the data and writes the sites' files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.app import load_app
from hansa.common.data.partition.folds import folds
from hansa.common.job import rulebook
from hansa.common.job.spec import DataSpec, JobSpec
from hansa.common.run.federation import LocalFederation
from hansa.common.run.site_data import SiteData, located, prepare_data
from hansa.common.values.errors import InvalidInput
from tests.unit.samples import loaded

APP = """
from hansa import App
app = App(model=list, classes=3, class_names=("maybe", "no", "yes"))
"""
TABLE = "age,town,height,sick\n" + "40,Ulm,1.5,no\n50,Bonn,1.6,yes\n61,Ulm,1.7,yes\n" * 4


def write_source(folder: Path, name: str) -> Path:
    """Write the same rows as a table or as arrays; no row is labelled 'maybe'."""
    path = folder / name
    if path.suffix == ".npz":
        np.savez(path, x=np.ones((12, 2), np.float32), y=np.array(["no", "yes", "yes"] * 4))
    else:
        path.write_text(TABLE)
    return path


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.npz"])
def test_words_that_are_labels_get_the_numbers_that_a_site_gives_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    source, app = write_source(tmp_path, name), f"{tmp_path / 'app.py'}:app"
    spec = JobSpec(app=app, data=DataSpec(source=str(source), sites=1, test=0))
    data = prepare_data(spec, None, tmp_path / "out")
    with np.load(data.files["site-1"]) as written:
        labels = sorted(written["y"].tolist())
    assert labels == sorted(loaded(load_app(app), source, "train").y.tolist()) == [1] * 4 + [2] * 8


@pytest.mark.parametrize("source", ["pictures", "a.npz"])
def test_a_source_is_found_beside_the_job_file_also_if_it_is_a_folder(tmp_path: Path, source: str) -> None:
    (tmp_path / "pictures").mkdir()
    write_source(tmp_path, "a.npz")
    data = located(JobSpec(app="package:app", data=DataSpec(source=source)), tmp_path / "job.yaml").data
    assert data is not None
    assert data.source == str(tmp_path / source)


def test_the_name_of_a_data_set_is_not_taken_for_a_folder_beside_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    data = located(JobSpec(app="package:app", data=DataSpec(source="digits")), tmp_path / "job.yaml").data
    assert data is not None
    assert data.source == "digits"


def prepared(folder: Path, central: bool = False, **fields: Any) -> SiteData:
    """Return what `hansa run` prepares for a job of six sites with the digits, or with other data."""
    rulebook.load()
    data = {"source": "digits", "sites": 6, "holdout": {"folds": 3}}
    spec = JobSpec.model_validate({"app": "package:app", "data": data, **fields})
    return prepare_data(spec, None, folder, central)


def test_sites_that_are_held_out_have_an_evaluator_and_the_others_a_learner(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    sites = data.spec.sites
    assert (len(data.learners), len(sites.validation), len(sites.test), sites.min) == (2, 2, 2, 2)
    assert sorted(data.files) == sorted((*data.learners, *sites.validation, *sites.test))
    assert data.evaluators == dict.fromkeys((*sites.validation, *sites.test), "all")
    assert data.split == "all"
    assert data.spec.evaluate == {"kind": "by-site"}
    rows = [len(np.load(path)["y"]) for path in data.files.values()]
    assert sum(rows) == 1797, "no row is held out for testing at sites that train"


def test_sites_that_train_have_an_evaluator_too_if_updates_are_evaluated(tmp_path: Path) -> None:
    data = prepared(tmp_path, rule="sync-dvw")
    held_out = (*data.spec.sites.validation, *data.spec.sites.test)
    assert data.evaluators == dict.fromkeys(held_out, "all") | dict.fromkeys(data.learners, "validation")


def test_with_test_sites_alone_the_others_evaluate_as_usual(tmp_path: Path) -> None:
    data = prepared(tmp_path, data={"source": "digits", "sites": 3}, sites={"test": ["site-2"]})
    assert (*data.learners, data.split) == ("site-1", "site-3", "test")
    assert data.evaluators == {"site-1": "test", "site-2": "all", "site-3": "test"}


def test_central_training_pools_the_sites_that_train_and_holds_out_the_others(tmp_path: Path) -> None:
    apart, central = prepared(tmp_path / "apart"), prepared(tmp_path / "central", central=True)
    held_out = (*apart.spec.sites.validation, *apart.spec.sites.test)
    assert central.evaluators == dict.fromkeys(held_out, "all")
    assert [*central.learners] == ["central"]
    rows = np.concatenate([np.load(apart.files[site])["x"] for site in apart.learners])
    pooled = np.load(central.files["central"])["x"]
    assert sorted(map(bytes, rows)) == sorted(map(bytes, pooled))
    for site in held_out:
        np.testing.assert_array_equal(np.load(central.files[site])["x"], np.load(apart.files[site])["x"])
    assert central.spec.train.batch_size == 2 * apart.spec.train.batch_size
    assert (central.spec.sites.min, central.spec.data.sites if central.spec.data else 0) == (1, 6)


def test_sites_with_files_of_their_own_are_divided_by_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    files = {f"s{number}": str(write_source(tmp_path, f"{number}.csv")) for number in (1, 2, 3, 4)}
    data = prepared(
        tmp_path / "out",
        app=f"{tmp_path / 'app.py'}:app",
        data={"files": files, "holdout": {"folds": 4, "fold": 1}},
        seed=3,
    )
    fold = folds([*files], 3, 4)[1]
    assert (data.learners, data.spec.sites.validation, data.spec.sites.test) == (
        fold.train,
        fold.validation,
        fold.test,
    )


def test_a_site_that_is_held_out_cannot_be_slowed_down(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    (first, *_) = data.spec.sites.test
    with pytest.raises(InvalidInput, match=f"--slow {first}: the site is held out, so it does not train"):
        LocalFederation(data, tmp_path, {first: 2.0})
