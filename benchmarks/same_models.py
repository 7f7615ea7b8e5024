"""Shows that a simulation gives the models of a federation: every version of many jobs, bit for bit.

Each job is run twice: by `hansa run`, with a controller and sites as processes, and by `hansa simulate`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import machine, print_table, save

HERE = Path(__file__).parent
SOME = {"sample": {"kind": "uniform", "fraction": 0.6}}
RULES: dict[str, dict[str, Any]] = {
    "fedavg": SOME,
    "fedprox": {},
    "fedadam": SOME,
    "krum": {},
    "divide": {"layers": {"prepass": 1}},
    "radfed": {"pace": {"rounds": 2, "hops": 3}, **SOME},
    "fedmmb": {"train": {"batches": 3, "epochs": None}},
    "sync-dvw": {},
    "feddaf": {"weigh": {"backend": "em", "refit": 1, "time_limit": 100}},
    "scaffold": SOME,
    "fedavg, kept optimizer": {
        "rule": "fedavg",
        "train": {"keep_optimizer": True, "optimizer": {"kind": "adam", "lr": 0.01}},
    },
}
COMPARED = ("site", "slot", "weight", "examples", "used", "steps", "loss", "metrics")  # of every update


def job(rule: str, app: str) -> dict[str, Any]:
    """Return a small job of five sites."""
    more = dict(RULES[rule])
    train = {"epochs": 1, "batch_size": 32, "optimizer": {"lr": 0.05}} | more.pop("train", {})
    usual: dict[str, Any] = {
        "name": "same",
        "app": f"{HERE / 'digits_apps.py'}:{app}",
        "rule": rule,
        "pace": {"rounds": 3},
        "validation": {"fraction": 0.2},
        "data": {"source": "digits", "sites": 5, "partition": {"kind": "non-iid-l", "labels": 4}},
    }
    return usual | more | {"train": {name: value for name, value in train.items() if value is not None}}


def versions(command: str, file: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a job; return what is compared of every version."""
    words = [sys.executable, "-m", "hansa", command, str(file), "--out", str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"hansa {command} {file}: {done.stderr or done.stdout}")
    report = json.loads((folder / "report.json").read_text())
    return [_compared(entry) for entry in report["history"]]


def _compared(entry: Mapping[str, Any]) -> dict[str, Any]:
    updates = [{name: update[name] for name in COMPARED} for update in entry["updates"]]
    in_order = sorted(updates, key=lambda each: (each["site"], each["slot"]))
    return {"digest": entry["digest"], "metrics": entry["metrics"], "updates": in_order}


def compare(rule: str, app: str) -> Mapping[str, Any]:
    """Run a job both ways."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"  # JSON is YAML
        file.write_text(json.dumps(job(rule, app)))
        real = versions("run", file, Path(folder) / "real")
        simulated = versions("simulate", file, Path(folder) / "simulated")
    return {"rule": rule, "app": app, "versions": len(real), "same": real == simulated}


def main() -> None:
    """Compare, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--apps", nargs="+", default=["mlp", "cnn"], choices=["mlp", "cnn"])
    options = parser.parse_args()
    rows = [compare(rule, app) for app in options.apps for rule in options.rules]
    print_table(
        ("app", "rule", "versions", "the same bits"),
        [(row["app"], row["rule"], str(row["versions"]), "yes" if row["same"] else "NO") for row in rows],
    )
    save("same_models", {"machine": machine(), "jobs": rows})
    if not all(row["same"] for row in rows):
        raise SystemExit("some jobs gave other models")


if __name__ == "__main__":
    main()
