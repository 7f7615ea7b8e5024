"""Run the federation once for each job file and print one table: how good the model is, and what it took.

python examples/fashion/compare.py [RULE …] [--rounds 10] [--sites 10] [--seeds 1990,1991]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
RULES = sorted(path.stem for path in HERE.glob("*.yaml"))


def federate(rule: str, sites: int, rounds: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run one federation; every rule gets the same number of updates."""
    job = HERE / f"{rule}.yaml"
    has_rounds = "rounds" in yaml.safe_load(job.read_text())["pace"]
    pace = f"pace.rounds={rounds}" if has_rounds else f"pace.updates={rounds * sites}"
    words = ["run", str(job), "--out", str(folder / f"{rule}-{seed}"), "--json", "--set", pace]
    words += ["--set", f"seed={seed}", "--set", f"data.sites={sites}"]
    if sites != 10:
        words += ["--set", "data.partition={kind: iid}"]  # the example's classes are for ten sites
    done = subprocess.run([sys.executable, "-m", "hansa", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{rule}: {done.stderr or 'the federation did not complete'}")
    report: dict[str, Any] = json.loads((folder / f"{rule}-{seed}" / "report.json").read_text())
    return report


def main() -> None:
    """Print one line for each rule and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rules", nargs="*", metavar="RULE", help=f"default: all of {', '.join(RULES)}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--seeds", default="1990")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.rules) - set(RULES))
    if unknown:
        parser.error(f"there is no {unknown[0]}.yaml; there are {', '.join(RULES)}")
    print(f"{'rule':18} {'seed':>5}  accuracy    loss  updates  seconds")
    with tempfile.TemporaryDirectory() as folder:
        for rule in chosen.rules or RULES:
            for seed in map(int, chosen.seeds.split(",")):
                view = federate(rule, chosen.sites, chosen.rounds, seed, Path(folder))
                updates = sum(len(entry["contributions"]) for entry in view["history"])
                accuracy, loss = view["metrics"]["accuracy"], view["metrics"]["loss"]
                line = f"{rule:18} {seed:5}  {accuracy:7.1%}  {loss or float('nan'):7.3f}  {updates:7}"
                print(f"{line}  {view['seconds']:7.1f}", flush=True)


if __name__ == "__main__":
    main()
