"""Held-out sites in a whole run of real processes; numpy computes the metrics again from the files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hansa.common.job.file import load_job
from hansa.common.run.site_data import located
from hansa.simulation.run import simulate
from tests.e2e.conftest import APP_TEXT, hansa

JOB = """
name: apart
app: app.py:app
pace: {rounds: 2}
train: {epochs: 2, batch_size: 8, optimizer: {lr: 0.5}}
survey: {standardise: local}
data:
  source: plane.npz
  sites: 7
  partition: {kind: metis, sizes: skewed}
  holdout: {folds: 3, fold: 1}
"""


def matrix(model: dict[str, np.ndarray], file: Path) -> tuple[np.ndarray, float]:
    """Return the confusion matrix on all rows of a site, by their own standard, and the sum of losses."""
    with np.load(file) as arrays:
        x, y = arrays["x"].astype(np.float64), arrays["y"]
        assert "x_test" not in arrays
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    hidden = np.maximum(x @ model["0.weight"].T + model["0.bias"], 0)
    scores = hidden @ model["2.weight"].T + model["2.bias"]
    counts = np.zeros((2, 2), int)
    np.add.at(counts, (y, scores.argmax(axis=1)), 1)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
    return counts, float(losses.sum())


def measured(counts: np.ndarray, loss: float) -> dict[str, float]:
    """Return the metrics of a confusion matrix and a sum of losses."""
    right, n = np.diag(counts), counts.sum()
    f1 = 2 * right / np.maximum(counts.sum(axis=0) + counts.sum(axis=1), 1)
    return {
        "loss": loss / n,
        "accuracy": right.sum() / n,
        "weighted_f1": float((f1 * counts.sum(axis=1)).sum() / n),
    }


def expected(model: dict[str, np.ndarray], files: list[Path]) -> dict[str, Any]:
    """Return the metrics of sites together and, apart from them, their plain means over sites."""
    matrices = [matrix(model, file) for file in files]
    together = measured(np.sum([counts for counts, _ in matrices], axis=0), sum(loss for _, loss in matrices))
    alone = [measured(*each) for each in matrices]
    means = {f"{name}_by_site": np.mean([each[name] for each in alone]) for name in together}
    return together | means


def test_sites_that_are_held_out_evaluate_on_all_their_data_and_test_sites_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 2)).astype(np.float32) * (1, 5)
    np.savez(tmp_path / "plane.npz", x=x.astype(np.float32), y=(x[:, 0] + x[:, 1] / 5 > 0.4).astype(np.int64))
    (tmp_path / "app.py").write_text(APP_TEXT)
    (tmp_path / "job.yaml").write_text(JOB)
    done = hansa("run", "job.yaml", "--out", "out", cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "starting a controller and 7 sites (3 train, 2 validate, 2 test)" in done.stdout

    out = tmp_path / "out"
    report = json.loads((out / "report.json").read_text())
    fold = json.loads((out / "data" / "partition.json").read_text())["folds"][1]
    sites = report["resolved"]["job"]["sites"]
    assert (sites["validation"], sites["test"], sites["min"]) == (fold["validation"], fold["test"], 3)
    daemons = {path.stem for path in (out / "logs").iterdir()} - {"controller"}
    learners = {f"learner-{site}" for site in fold["train"]}
    assert daemons == learners | {f"evaluator-{site}" for site in (*fold["validation"], *fold["test"])}
    assert {update["site"] for entry in report["history"] for update in entry["updates"]} == {*fold["train"]}

    model = {name: array.astype(np.float64) for name, array in load_file(out / "model.safetensors").items()}
    last = report["history"][-1]
    for findings, names in ((last, fold["validation"]), (last["test"], fold["test"])):
        files = [out / "data" / f"{name}.npz" for name in names]
        assert findings["metrics"] == pytest.approx(expected(model, files), rel=1e-4)
        rows = sum(len(np.load(file)["y"]) for file in files)
        assert (findings["examples"], findings["examples_total"], findings["unevaluated"]) == (rows, rows, {})
    without: dict[str, object] = {
        "evaluations": {},
        "confusion": [],
        "labels": [],
        "personal": {},
    }  # the history has these
    assert (report["metrics"], report["test"]) == (last["metrics"], last["test"] | without)
    assert set(last["test"]["evaluations"]) == {*fold["test"]}
    assert [entry["test"]["examples"] > 0 for entry in report["history"][1:]] == [True, True]
    assert "examples of the validation sites" in done.stdout
    assert "examples of the test sites" in done.stdout
    _require_the_same_simulated(tmp_path / "job.yaml", tmp_path / "simulated", report["history"])


def _require_the_same_simulated(job: Path, folder: Path, history: list[dict[str, Any]]) -> None:
    """Simulate the job: the same sites are held out, and they find the same in the same models."""
    view = simulate(located(load_job(job, here=True), job), folder)
    assert [entry.digest for entry in view.history] == [entry["digest"] for entry in history]
    for entry, real in zip(view.history[1:], history[1:], strict=True):
        assert entry.test is not None
        assert (entry.metrics, entry.examples) == (real["metrics"], real["examples"])
        assert entry.test.model_dump() == real["test"]
