"""The resolved job in the folder of `hansa run`: loadable, complete, and with the same partition."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hansa.common.data.partition import parse_partition
from hansa.common.job.file import load_job
from hansa.common.job.spec import JobSpec
from hansa.common.report.material import RESOLVED
from hansa.common.run.folder import keep_resolved
from hansa.common.values.resolved import MADE_WITH
from hansa.common.values.views import JobView
from hansa.controller.rulebook.resolve import resolved

PARTITIONS: list[dict[str, Any]] = [
    {},
    {"labels": 4},
    {"sizes": "powerlaw(1.5)", "classes": "8x1,4x1,3x8"},
    {"kind": "dirichlet"},
    {"kind": "feddaf"},
    {"kind": "mcmahan"},
    {"kind": "color-skew"},
    {"kind": "imbalance"},
    {"by": "hospital", "least": 3},
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_the_file_is_a_job_file_with_the_same_partition(tmp_path: Path, partition: dict[str, Any]) -> None:
    data = {"source": "digits", "partition": partition, "sites": 5}
    spec = JobSpec.model_validate(
        {"app": str(tmp_path / "app.py:app"), "data": data, "init": "/models/first"}
    )
    view = JobView(job="j1", name="job", status="waiting", resolved=resolved(spec))
    keep_resolved(tmp_path, view, spec, threads=3)
    assert yaml.safe_load((tmp_path / RESOLVED).read_text())[MADE_WITH]["threads"] == 3
    again = load_job(tmp_path / RESOLVED, here=True)
    assert again.data is not None
    assert parse_partition(again.data.partition) == parse_partition(partition)
    assert (again.data.source, again.data.sites, again.init) == ("digits", 5, "/models/first")
    assert resolved(again).job == resolved(spec).job


def test_app_and_data_are_named_so_that_they_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.csv").write_text("a,b\n")
    spec = JobSpec.model_validate({"app": "sub/app.py:app", "data": {"source": "all.csv"}})
    keep_resolved(tmp_path, JobView(job="j1", name="job", status="waiting", resolved=resolved(spec)), spec, 1)
    again = load_job(tmp_path / RESOLVED, here=True)
    assert again.data is not None
    assert (again.app, again.data.source) == (f"{tmp_path}/sub/app.py:app", f"{tmp_path}/all.csv")


def test_a_folder_of_images_is_named_in_full_and_a_data_set_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, found in (("pictures", f"{tmp_path}/pictures"), ("mnist", "mnist")):
        (tmp_path / name).mkdir()
        spec = JobSpec.model_validate({"app": "my.module:app", "data": {"source": name}})
        keep_resolved(
            tmp_path, JobView(job="j1", name="job", status="waiting", resolved=resolved(spec)), spec, 1
        )
        again = load_job(tmp_path / RESOLVED, here=True)
        assert again.data is not None
        assert again.data.source == found


def test_an_app_that_is_a_module_keeps_its_name(tmp_path: Path) -> None:
    spec = JobSpec.model_validate({"app": "my.module:app"})
    keep_resolved(tmp_path, JobView(job="j1", name="job", status="waiting", resolved=resolved(spec)), spec, 1)
    assert load_job(tmp_path / RESOLVED, here=True).app == "my.module:app"
