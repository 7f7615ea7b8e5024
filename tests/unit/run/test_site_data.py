"""Before it starts anything, `hansa run` finds the data and writes the sites' files."""

from pathlib import Path

import numpy as np
import pytest

from hansa.common.app import load_app
from hansa.common.job.spec import DataSpec, JobSpec
from hansa.common.run.site_data import located, prepare_data

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
    assert labels == sorted(load_app(app).load(source, "train").y.tolist()) == [1] * 4 + [2] * 8


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
