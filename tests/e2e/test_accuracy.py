"""The driver of accuracy tables, with a table that is small enough for a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

DRIVE = """
import sys, pathlib
import harness
folder = pathlib.Path(sys.argv.pop(1))
harness.RESULTS = folder / "results"
import accuracy
accuracy.TABLES = folder
accuracy.main()
"""
TABLE = """
title: Digits at two sites
budget: one round of one epoch for all
seeds: [5]
job: examples/digits/job.yaml
set:
  data.sites: 2
  data.partition: {kind: iid}
  data.examples: 200
  pace: {kind: sync, rounds: 1}
  train.epochs: 1
rows:
  fedavg:
  slowly: {slow: {site-1: 1.5}}
  impossible: {set: {weigh: {kind: nonsense}}}
"""


def _drive(folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, str(folder), "small", *words],
        cwd=ROOT,
        env={"PATH": "", "HANSA_CONFIG": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.timeout(600)
def test_a_table_is_measured_in_pieces_and_nothing_twice(tmp_path: Path) -> None:
    job, app = ((ROOT / "examples" / "digits" / name).read_text() for name in ("job.yaml", "app.py"))
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "job.yaml").write_text(job.replace("examples/digits/app.py", str(tmp_path / "app.py")))
    table = TABLE.replace("examples/digits/job.yaml", str(tmp_path / "job.yaml"))
    (tmp_path / "small.yaml").write_text(table)
    code, shown, _ = _drive(tmp_path, "--rows", "fedavg")
    assert code == 0
    assert "| fedavg | 1 | " in shown
    path = tmp_path / "results" / "accuracy_small.json"
    first = json.loads(path.read_text())
    (run,) = first["runs"]
    assert (run["row"], run["seed"], run["rounds"], run["updates"]) == ("fedavg", 5, 1, 2)
    assert run["updates_by_site"] == {"site-1": 1, "site-2": 1}
    assert run["curve"] == [[1, run["curve"][0][1], run["accuracy"]]]
    assert run["bytes_up"] > 0 < run["bytes_down"]
    assert run["virtual"] == 6
    assert (
        run["steps"] == 12
    )  # about 95 examples of each site are trained on, 16 in a batch; the partial one counts

    code, shown, complaint = _drive(tmp_path)
    assert code == 1, "a row that fails is told of, and the others are measured"
    assert "impossible, seed 5: hansa: " in complaint
    assert "there is no 'nonsense'" in complaint
    assert "fedavg, seed" not in shown
    assert "| impossible | 0 |" in shown
    held = {run["row"]: run for run in json.loads(path.read_text())["runs"]}
    assert held.keys() == {"fedavg", "slowly"}
    assert held["fedavg"] == run, "it was not measured again"
    assert held["slowly"]["accuracy"] == run["accuracy"], "slow sites train no worse"
    assert held["slowly"]["virtual"] == 9

    for name, more in (("job.yaml", "# a comment"), ("app.py", "other = App(model=build, classes=7)")):
        with (tmp_path / name).open("a") as file:
            file.write(f"{more}\n")
    _, shown, _ = _drive(tmp_path, "--print")
    assert "| fedavg | 1 |" in shown, (
        "the run is the same with a comment, and with another app beside its own"
    )
    (tmp_path / "app.py").write_text(app.replace("nn.ReLU()", "nn.Tanh()"))
    _, shown, _ = _drive(tmp_path, "--print")
    assert "| fedavg | 0 |" in shown, "another network is another run"
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "small.yaml").write_text(table.replace("rounds: 1", "rounds: 2"))
    code, shown, _ = _drive(tmp_path, "--print")
    assert "| fedavg | 0 |" in shown, "another definition is another run"
    assert code == 0


TUNED = """
title: Digits at two sites, with a learning rate of their own
budget: one round of one epoch for all
seeds: [5, 6]
job: examples/digits/job.yaml
set:
  data.sites: 2
  data.partition: {kind: iid}
  data.examples: 200
  pace: {kind: sync, rounds: 2}
tune: {seed: 4, key: train.optimizer.lr, values: [1.0e-6, 0.05], set: {data.test: 0}}
rows:
  fedavg:
  as it is: {set: {train.optimizer.lr: 1.0e-6}}
"""


@pytest.mark.timeout(600)
def test_a_row_takes_the_learning_rate_that_is_best_with_another_seed(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(TUNED)
    code, shown, complaint = _drive(tmp_path)
    assert code == 0, complaint
    runs = json.loads((tmp_path / "results" / "accuracy_small.json").read_text())["runs"]
    tried = [run["row"] for run in runs if run["seed"] == 4]
    assert tried == ["fedavg, train.optimizer.lr 1e-06", "fedavg, train.optimizer.lr 0.05"]
    first, second = (
        next(line for line in shown.splitlines() if line.startswith(f"| {name} "))
        for name in ("fedavg", "as it is")
    )
    assert first.startswith("| fedavg | 2 | 0.05 | ")
    assert second.startswith("| as it is | 2 | 1e-06 | ")
    means = {(run["row"], run["seed"]): sum(accuracy for *_, accuracy in run["curve"]) / 2 for run in runs}
    behind = [means["as it is", seed] - means["fedavg", seed] for seed in (5, 6)]
    assert f" | {sum(behind) / 2 * 100:+.1f} ± " in second, "differences are those of the same seed"

    (tmp_path / "small.yaml").write_text(TUNED.replace("seed: 4", "seed: 5"))
    code, _, complaint = _drive(tmp_path, "--print")
    assert code == 1
    assert "tune.seed: 5 is one of the table's own seeds" in complaint
