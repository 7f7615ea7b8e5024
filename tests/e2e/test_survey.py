"""Standardisation over the real wire: learners report sums, and all sites standardise by their total."""

import json
from pathlib import Path

import numpy as np
import pytest

from hansa.common.data.examples import load_npz
from tests.e2e.conftest import hansa

APP = '''
"""Two classes that no network learns unless the columns are standardised; `model` is a fixed linear rule."""
import numpy as np
from hansa import App
from hansa.common.values.results import Evaluation

def train(arrays, run):
    x = run.examples.x
    arrays["mean"][...], arrays["deviation"][...] = x[:, :2].mean(axis=0), x[:, :2].std(axis=0)
    arrays["rest"][...] = x[:, 2].mean()
    return arrays

def evaluate(arrays, examples):
    n = len(examples)
    return Evaluation(n=n, loss_sum=float(examples.x[:, 0].sum()), confusion=((n, 0), (0, 0)))

model = lambda: {"mean": np.zeros(2), "deviation": np.zeros(2), "rest": np.zeros(1)}
app = App(model=model, classes=2, train=train, evaluate=evaluate)
'''
JOB = """
name: survey
app: app.py:app
pace: {rounds: 1}
weigh: {kind: examples}
validation: {fraction: 0}
survey: {standardise: KIND, columns: 2, classes: COUNTED}
data: {source: all.npz, partition: {by: ward}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    x = rng.normal([1000, -5, 3], [300, 0.01, 1], (90, 3)).astype(np.float32)
    ward = np.repeat(["east", "north", "west"], [20, 30, 40])
    x[ward == "north", 0] += 5000
    np.savez(tmp_path / "all.npz", x=x, y=rng.integers(0, 2, 90), ward=ward)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def _run(folder: Path, kind: str, counted: str) -> dict[str, object]:
    (folder / "job.yaml").write_text(JOB.replace("KIND", kind).replace("COUNTED", counted))
    done = hansa("run", "job.yaml", "--out", "out", "--json", cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads((folder / "out" / "report.json").read_text())
    return found


def _model(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "out" / "model.safetensors"))


def test_what_learners_tell_adds_up_to_what_all_rows_in_one_place_would_give(folder: Path) -> None:
    report = _run(folder, "global", "true")
    told = report["survey"]
    assert isinstance(told, dict)
    parts = {
        name: load_npz(folder / "out" / "data" / f"{name}.npz", "train") for name in ("east", "north", "west")
    }
    every = np.concatenate([part.x for part in parts.values()]).astype(np.float64)
    assert told["mean"] == pytest.approx(every[:, :2].mean(axis=0), rel=1e-10)
    assert told["deviation"] == pytest.approx(every[:, :2].std(axis=0), rel=1e-10)
    assert told["examples"] == {name: len(part) for name, part in parts.items()}
    assert told["classes"] == {
        name: np.bincount(part.y, minlength=2).tolist() for name, part in parts.items()
    }
    verified = hansa("job", "verify", str(report["job"]), "--state", "out/controller", cwd=folder)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # Weighted by examples, what the learners saw has mean 0 over all sites; at each site it has not.
    model = _model(folder)
    assert model["mean"] == pytest.approx([0, 0], abs=1e-3)
    assert model["rest"] == pytest.approx(every[:, 2].mean(), abs=1e-3), "other columns are left alone"
    assert (model["deviation"] < 0.999).any()
    # Evaluators use the same standard on test rows.
    tests = np.concatenate([load_npz(folder / "out" / "data" / f"{name}.npz", "test").x for name in parts])
    expected = ((tests[:, 0] - told["mean"][0]) / told["deviation"][0]).mean()
    history = report["history"]
    assert isinstance(history, list)
    assert history[-1]["metrics"]["loss"] == pytest.approx(expected, abs=1e-4)


def test_a_local_standard_is_each_sites_own(folder: Path) -> None:
    report = _run(folder, "local", "false")
    assert "survey" not in report
    model = _model(folder)
    assert model["mean"] == pytest.approx([0, 0], abs=1e-3)
    assert model["deviation"] == pytest.approx([1, 1], abs=1e-3)


def test_columns_that_a_site_does_not_have_fail_the_job_by_name(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("KIND", "global").replace("COUNTED", "false"))
    done = hansa("run", "job.yaml", "--out", "out", "--set", "survey.columns=4", cwd=folder, timeout=120)
    assert done.returncode == 1
    assert "4 columns are to be standardised, but the data have 3" in done.stderr
    assert "site " in done.stderr
