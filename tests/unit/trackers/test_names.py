"""Metrics of apps and plugins, and sites, that have the names of something else in an export."""

import csv
from pathlib import Path

import pytest

from hansa.common.client.rows import version_rows
from hansa.common.trackers.base import site_numbers
from hansa.common.trackers.files import Csv
from hansa.common.trackers.tensorboard import TensorBoard
from hansa.common.values.history import Update, VersionView
from hansa.common.values.views import JobView

JOB = JobView(job="j1", name="names", status="completed")


def version(number: int) -> VersionView:
    update = Update(
        site="hansa.json", task=f"j1-{number}", slot=0, weight=3, metrics={"weight": 0.1, "own": 7}
    )
    named = {"version": 99, "round": 98, "job": 97, "own": 1}
    return VersionView(version=number, round=number, seconds=1, metrics=named, updates=(update,))


def test_a_metric_that_is_called_version_does_not_confuse_tables(tmp_path: Path) -> None:
    for first in (1, 3):  # the second time, the file says where to go on
        table = Csv(tmp_path / "out.csv")
        assert table.open(JOB) == first - (2 if first == 1 else 1)
        for number in (first, first + 1):
            table.take(version(number))
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(row["job"], row["version"], row["own"]) for row in rows] == [
        ("j1", str(number), "1.0") for number in (1, 2, 3, 4)
    ]
    (row,) = version_rows(JOB.model_copy(update={"history": (version(1),)}))
    assert (row["version"], row["round"], row["own"]) == (1, 1, 1)


def test_a_plugin_does_not_replace_what_the_controller_knows_of_an_update() -> None:
    numbers = site_numbers(version(1))["hansa.json"]
    assert (numbers["weight"], numbers["own"]) == (3, 7)


def test_no_site_has_the_name_of_a_file_of_the_export(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    for newest in (-1, 1):
        with TensorBoard(tmp_path) as board:
            assert board.open(JOB) == newest
            board.take(version(1))
