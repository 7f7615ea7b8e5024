"""Federations from a script: `hansa run` as a process of its own, and what its report says.

The comparisons below examples/ and benchmarks/accuracy.py run theirs with it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.common.errors import HansaError

Report = dict[str, Any]  # as report.json has it


def run_trial(
    job: Path, out: Path, changes: Mapping[str, object] | None = None, slow: Mapping[str, float] | None = None
) -> Report:
    """Run a job's federation to its end, with changes by dotted path; its report, model and logs are left in `out`."""
    words = [sys.executable, "-m", "hansa", "run", str(job), "--out", str(out), "--json"]
    for key, value in (changes or {}).items():
        words += ["--set", f"{key}={json.dumps(value)}"]  # JSON is YAML
    for site, factor in (slow or {}).items():
        words += ["--slow", f"{site}={factor:g}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, complaint = process.communicate()
    except BaseException:
        process.terminate()  # politely: it ends every process of the federation
        process.wait()
        raise
    if process.returncode:
        reason = json.loads(said).get("reason") if said.startswith("{") else ""
        raise HansaError(complaint.strip() or f"{job}: the federation did not complete: {reason}")
    report: Report = json.loads((out / "report.json").read_text())
    return report


@dataclass(frozen=True)
class Outcome:
    """How good a federation's model became, and what it took."""

    accuracy: float | None  # of the last version that was evaluated
    best: float | None  # of all versions that were
    loss: float | None
    rounds: int  # merges
    updates: int  # that were merged
    updates_by_site: Mapping[str, int]
    steps: int  # of optimizers, that were merged
    bytes_up: int
    bytes_down: int
    seconds: float
    curve: tuple[tuple[int, float, float], ...]  # version, seconds, accuracy


def outcome(report: Report) -> Outcome:
    """Sum a report up."""
    curve = [
        (entry["version"], entry["seconds"], entry["metrics"]["accuracy"])
        for entry in report["history"]
        if entry["metrics"].get("accuracy") is not None
    ]
    merged = [site for entry in report["history"] for site in entry["contributions"]]
    return Outcome(
        accuracy=report["metrics"].get("accuracy"),
        best=max((accuracy for *_, accuracy in curve), default=None),
        loss=report["metrics"].get("loss"),
        rounds=report["rounds"],
        updates=len(merged),
        updates_by_site={site: merged.count(site) for site in sorted(set(merged))},
        steps=report["history"][-1]["steps"] if report["history"] else 0,
        bytes_up=report["bytes_up"],
        bytes_down=report["bytes_down"],
        seconds=report["seconds"],
        curve=tuple(curve),
    )
