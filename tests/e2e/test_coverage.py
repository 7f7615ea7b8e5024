"""A real asynchronous federation with one class per site: the metric that stops it covers all sites."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, hansa

JOB = f"""
name: one-class
seed: 1
app: {ROOT / "examples" / "digits" / "app.py"}:app
rule: async-fedavg
pace: {{updates: 300}}
train: {{epochs: 1, batch_size: 32, optimizer: {{kind: sgd, lr: 0.05}}}}
validation: {{fraction: 0.3}}
stop: {{target: {{metric: accuracy, value: 0.2}}}}
data: {{source: digits, test: 0, sites: 10, partition: {{kind: non-iid-l, labels: 1}}}}
"""


@pytest.mark.slow
def test_where_each_site_has_one_class_a_target_is_reached_on_the_examples_of_all_sites(
    tmp_path: Path,
) -> None:
    file, out = tmp_path / "job.yaml", tmp_path / "out"
    file.write_text(JOB)
    done = hansa("run", str(file), "--out", str(out), cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    reached = re.fullmatch(r"target reached: accuracy (0\.\d+) at version (\d+)", report["reason"])
    assert reached, report["reason"]
    history = report["history"]
    everything = report["examples_total"]
    stopped, last = history[int(reached[2])], history[-1]
    for entry in (stopped, last):
        assert (entry["examples"], entry["examples_total"], entry["unevaluated"]) == (
            everything,
            everything,
            {},
        )
        assert entry["covered"]
        assert entry["evaluated"]
    assert (report["metrics"], report["metrics_version"]) == (last["metrics"], last["version"])
    assert stopped["metrics"]["accuracy"] >= 0.2
    earlier = [entry for entry in history[: stopped["version"]] if entry["covered"]]
    assert all(entry["metrics"]["accuracy"] < 0.2 for entry in earlier)
    for entry in history:
        assert entry["covered"] is (entry["examples"] == everything)
    last_line = "  ".join(
        f"{name} {last['metrics'][name]:.4f}" for name in ("loss", "accuracy", "weighted_f1")
    )
    assert f"{last_line}  on {everything} of {everything} examples" in done.stdout
    assert re.search(rf"result .* on {everything} \w+ examples", done.stdout)
