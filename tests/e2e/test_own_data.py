"""Own data: files of sites under `hansa run`, tables at running sites, and the loader in the documents."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hansa.common.job.file import load_job
from tests.e2e.conftest import ROOT, Site, hansa, weights

APP = """
from torch import nn
from hansa import App

def build():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

app = App(model=build, classes=2, class_names=("no", "yes"), label="sick")
"""
JOB = """
name: own
app: app.py:app
pace: {rounds: 4}
train: {epochs: 4, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}
validation: {fraction: 0.25}
sites: {min: 2, wait: 30}
"""


def write_table(path: Path, seed: int, rows: int = 60) -> None:
    """Write a table with a column of words, and words for labels."""
    rng = np.random.default_rng(seed)
    lines = ["age,sick,town,height"]
    for _ in range(rows):
        age, height = rng.normal(size=2)
        lines.append(
            f"{age:.4f},{'yes' if age + height > 0 else 'no'},{rng.choice(['Ulm', 'Bonn'])},{height:.4f}"
        )
    path.write_text("\n".join(lines) + "\n")


def write_job(folder: Path, data: str = "") -> None:
    (folder / "app.py").write_text(APP)
    (folder / "job.yaml").write_text(JOB + data)
    write_table(folder / "a.csv", 1)
    write_table(folder / "b.csv", 2)


def test_ready_files_of_sites_are_run_as_they_are_from_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    write_job(folder, "data: {files: {ben: b.csv, ana: a.csv}}\n")
    done = hansa("run", "jobs/job.yaml", "--out", "out", cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"on 3\d validation examples that sites kept back", done.stdout), done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(weights(report["history"][-1])) == {"ana", "ben"}
    assert report["history"][-1]["metrics"]["accuracy"] > 0.8
    assert not (tmp_path / "out" / "data").exists(), "nothing is copied"
    again = load_job(tmp_path / "out" / "job.resolved.yaml")
    assert again.data is not None
    assert again.data.files == {"ana": str(folder / "a.csv"), "ben": str(folder / "b.csv")}


def test_files_that_do_not_agree_are_refused_before_anything_starts(tmp_path: Path) -> None:
    write_job(tmp_path, "data: {files: {ana: a.csv, ben: b.csv}}\n")
    (tmp_path / "b.csv").write_text("age,sick\n1,no\n")
    done = hansa("run", "job.yaml", "--out", "out", cwd=tmp_path, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "data.files.ben: " in done.stderr
    assert "its features differ from those of ana: it lacks height" in done.stderr
    assert not (tmp_path / "out" / "controller").exists()
    (tmp_path / "b.csv").unlink()
    done = hansa("run", "job.yaml", "--out", "out", cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert "data.files: no such file or folder: ben (" in done.stderr
    write_table(tmp_path / "b.csv", 2)
    for option in (("--sites", "3"), ("--central",)):
        done = hansa("run", "job.yaml", "--out", "out", *option, cwd=tmp_path, timeout=60)
        assert done.returncode == 2
        assert f"{option[0]}: data.files says which site has which data" in done.stderr


def test_a_standing_site_takes_the_table_that_hansa_run_takes(scene: Site) -> None:
    write_job(scene.folder)
    scene.controller()
    for site in "ab":
        for role in ("learner", "evaluator"):
            scene.daemon(role, site, data=f"{site}.csv")
    done = scene.cli("job", "submit", "job.yaml", "--wait")
    assert done.returncode == 0, done.stderr + done.stdout
    assert scene.json("job", "show", "own")["metrics"]["accuracy"] > 0.8


def test_the_loader_in_the_documents_runs_under_hansa_run(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "writing-an-app.md").read_text()
    text = text[: text.index("## Several labels")]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    loader = next(block for block in blocks if "def read(" in block)
    (tmp_path / "app.py").write_text(f"{blocks[0]}\n{loader}")
    (job,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "job.yaml").write_text(job)
    rng = np.random.default_rng(0)
    for site in ("ana", "ben"):
        (tmp_path / site).mkdir()
        for part, rows in (("train", 60), ("test", 20)):
            table = np.column_stack([rng.normal(size=(rows, 64)), rng.integers(10, size=rows)])
            head = ",".join([*(f"x{i}" for i in range(64)), "y"])
            np.savetxt(tmp_path / site / f"{part}.csv", table, delimiter=",", header=head, comments="")
    done = hansa("run", "job.yaml", "--set", "pace.rounds=2", "--out", "out", cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "on 40 test examples that no site trained on" in done.stdout


@pytest.mark.parametrize(
    ("test", "said"), [("0", "validation examples that sites kept back"), ("0.2", "test examples")]
)
def test_the_summary_says_what_examples_were_measured_on(tmp_path: Path, test: str, said: str) -> None:
    job = str(ROOT / "examples" / "digits" / "job.yaml")
    words = ("--set", f"data.test={test}", "--set", "pace.rounds=1", "--set", "validation.fraction=0.1")
    done = hansa("run", job, "--out", str(tmp_path / "out"), *words, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.timeout(180)
def test_the_section_on_data_of_ones_own_can_be_followed(scene: Site) -> None:
    folder = scene.folder
    text = (ROOT / "docs" / "first-federation.md").read_text()
    section = text.partition("## Your own data\n")[2].partition("\n## ")[0]
    (head,) = re.findall(r"```\n(age,.*)\n", section)
    rng = np.random.default_rng(1)
    ages, pressures = rng.integers(20, 90, 300), rng.integers(90, 180, 300)
    rows = [f"{a},{p},north,{int(a + p / 2 > 120)}" for a, p in zip(ages, pressures, strict=True)]
    (folder / "patients.csv").write_text("\n".join([head, *rows]) + "\n")
    (app,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (folder / "app.py").write_text(app)
    (job,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (folder / "job.yaml").write_text(job)
    done = hansa("run", "job.yaml", "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["metrics"]["accuracy"] > 0.7
    scene.controller()
    for role in ("learner", "evaluator"):
        scene.daemon(role, "st-mary", data="patients.csv")
    submitted = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.wait=30")
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert scene.json("job", "show", "patients")["metrics"]["accuracy"] > 0.7
