"""`hansa simulate` as a newcomer meets it: the models of `hansa run`, its folder, and typical mistakes."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import hansa

APP = """
import random
import numpy as np
import torch
from torch import nn
from hansa import App

def build():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10),
    )

app = App(model=build, classes=10)
small = App(model=lambda: nn.Linear(64, 10), classes=10)

class Rows:
    def __init__(self, path, split):
        with np.load(path) as arrays:
            end = "_test" if split == "test" else ""
            self.x, self.targets = torch.from_numpy(arrays["x" + end]), arrays["y" + end]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        return {"input": self.x[row], "labels": int(self.targets[row])}

def noisy(example):
    return example | {"input": example["input"] + random.random() * torch.rand(64)}

lazy = App(model=build, classes=10, data=Rows, augment=noisy, workers=1)
"""
JOB: dict[str, Any] = {
    "name": "small",
    "app": "app.py:app",
    "rule": "fedavg",
    "pace": {"rounds": 3},
    "sample": {"kind": "uniform", "fraction": 0.6},
    "train": {"epochs": 1, "batch_size": 16, "keep_optimizer": True, "optimizer": {"kind": "adam"}},
    "data": {"source": "digits", "sites": 5, "examples": 400},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an app and a job."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def digests(folder: Path) -> list[str]:
    return [entry["digest"] for entry in report_of(folder)["history"]]


def test_a_simulation_and_a_federation_give_the_same_models_metrics_and_updates(folder: Path) -> None:
    assert hansa("run", "job.yaml", "--out", "real", "--json", cwd=folder, timeout=240).returncode == 0
    done = hansa("simulate", "job.yaml", "--out", "simulated", "--workers", "2", cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    assert digests(folder / "simulated") == digests(folder / "real")
    real, simulated = (report_of(folder / name)["history"] for name in ("real", "simulated"))
    for one, other in zip(real, simulated, strict=True):
        assert one["metrics"] == other["metrics"]
        steps = [sorted((each["site"], each["steps"]) for each in entry["updates"]) for entry in (one, other)]
        assert steps[0] == steps[1]
    assert "Done: 3 rounds of 5 virtual sites" in done.stdout
    model = [(folder / name / "model.safetensors").stat().st_size for name in ("real", "simulated")]
    assert abs(model[0] - model[1]) < 2000  # the files differ in what they say about the job
    again = hansa("simulate", "simulated/job.resolved.yaml", "--out", "again", "--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert digests(folder / "again") == digests(folder / "real")
    assert report_of(folder / "again")["simulation"]["settings"]["step_seconds"] == 0.01


def test_datasets_with_random_transforms_have_the_same_models_whoever_reads_them(folder: Path) -> None:
    words = ["--set", "app=app.py:lazy", "--set", "data.sites=2", "--set", "pace.rounds=2", "--json"]
    done = hansa("run", "job.yaml", "--out", "real", *words, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    done = hansa("simulate", "job.yaml", "--out", "simulated", *words, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    assert digests(folder / "simulated") == digests(folder / "real")
    real, simulated = (report_of(folder / name)["history"] for name in ("real", "simulated"))
    assert [each["metrics"] for each in simulated] == [each["metrics"] for each in real]


def test_a_table_has_a_row_for_each_version(folder: Path) -> None:
    done = hansa("simulate", "job.yaml", "--out", "o", "--table", "t.csv", "--json", cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((folder / "t.csv").read_text().splitlines()))
    assert [row["digest"] for row in rows] == digests(folder / "o")
    assert json.loads(done.stdout)["status"] == "completed"
    assert float(rows[-1]["accuracy"]) == report_of(folder / "o")["history"][-1]["metrics"]["accuracy"]


def test_small_clients_have_the_same_models_with_and_without_blocks_and_workers(folder: Path) -> None:
    plain = ("--set", "app=app.py:small", "--set", "train={batch_size: 4}", "--sites", "40")
    for out, words in {"together": ("--workers", "2"), "alone": ("--batched", "off")}.items():
        done = hansa("simulate", "job.yaml", *plain, *words, "--out", out, cwd=folder, timeout=120)
        assert done.returncode == 0, done.stderr
    assert digests(folder / "together") == digests(folder / "alone")
    said = report_of(folder / "together")["simulation"], report_of(folder / "alone")["simulation"]
    assert [each["batched"] for each in said] == ["auto", "off"]
    assert said[1]["remarks"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sites", "5000"], "5000 sites cannot share 400 examples"),
        (["--set", "data=null"], "data: is required by `hansa simulate`"),
        (["--set", "simulate.slow.sites.site-9=2"], "there is no site site-9"),
        (["--set", "simulate.step_seconds=-1"], "simulate.step_seconds"),
        (["--set", "data.central=true"], "central training has no sites to simulate"),
        (["--table", "t.txt"], "the name must end in .csv or .parquet"),
        (["--out", "."], "choose a new folder"),
    ],
)
def test_typical_mistakes_have_one_line_each(folder: Path, words: list[str], message: str) -> None:
    done = hansa("simulate", "job.yaml", *words, cwd=folder, timeout=120)
    assert done.returncode in (1, 2), done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
