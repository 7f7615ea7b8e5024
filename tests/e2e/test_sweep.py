"""A sweep whose runs are real federations: interrupted, continued, paired by seed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, hansa
from tests.e2e.test_run import processes_below
from tests.waiting import until

SWEEP = f"""
base: {ROOT}/examples/digits/job.yaml
set:
  pace: {{kind: sync, rounds: 2}}
  train.epochs: 1
  data: {{source: digits, sites: 2, examples: 120, partition: {{sizes: skewed}}}}
axes: {{weigh.kind: [examples, equal]}}
seeds: [1, 2]
target: 0.01
"""


def records(out: Path) -> dict[str, dict[str, Any]]:
    """Return what is noted of each run that has begun."""
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("runs/*/run.json")}


def interrupted(words: list[str], out: Path) -> tuple[int, str]:
    """Start a sweep as on a terminal, press Ctrl-C when its first run has ended, and return how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hansa", *words],
        cwd=ROOT,
        env=os.environ | {"HANSA_CONFIG": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # The second run has begun: its controller is there.
        until(lambda: any(record["status"] == "completed" for record in records(out).values()), 100)
        until(lambda: list(out.glob("runs/*/controller/controller.lock")), 60)
        os.killpg(process.pid, signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, complaint


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_sweep_goes_on_after_ctrl_c_and_pairs_its_runs_by_seed(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SWEEP)
    out = tmp_path / "out"
    words = ["sweep", str(tmp_path / "small.yaml"), "--processes", "--out", str(out)]
    code, complaint = interrupted(words, out)
    assert code == 130, complaint
    assert f"`hansa {' '.join(words)}` continues with the others" in complaint
    until(lambda: not processes_below(out), 20)
    (first,) = [name for name, record in records(out).items() if record["status"] == "completed"]
    before = records(out)[first]

    done = hansa(*words, "--table", str(tmp_path / "all.csv"), cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "1 run of 4 finished before" in done.stdout
    assert "[4/4] weigh.kind=equal, seed=2: " in done.stdout
    assert "2 pairs cannot show significance" in done.stdout
    assert records(out)[first] == before, "it was not run again"
    assert (tmp_path / "all-versions.csv").read_text().count("\n") == 1 + 4 * 3
    assert (out / "accuracy-by-round.svg").exists()

    whole = json.loads((out / "sweep.json").read_text())
    assert [row["completed"] for row in whole["rows"]] == [2, 2]
    assert whole["rows"][1]["metrics"]["accuracy"]["rounds_to_target"]["mean"] == 1
    reports = [json.loads((out / run["folder"] / "report.json").read_text()) for run in whole["runs"]]
    starts = [report["history"][0]["digest"] for report in reports]
    trained = [
        [(update["site"], update["examples"], update["loss"]) for update in report["history"][1]["updates"]]
        for report in reports
    ]
    weights = [[u["weight"] for u in report["history"][1]["updates"]] for report in reports]
    assert starts[0] == starts[1] != starts[2] == starts[3], "a seed has one first model"
    assert trained[0] == trained[1] != trained[2] == trained[3], "one partition, and one order of examples"
    assert weights[0] != weights[1], "what is varied differs"
    left = {path.name for path in (out / whole["runs"][0]["folder"]).iterdir()}
    pages = {"report.json", "report.html"}
    assert left == pages | {"job.yaml", "run.json", "model.safetensors", "job.resolved.yaml", "logs"}
