"""Run the federation once for each job file and print one table: how good the model is, and what it cost.

python examples/fashion/compare.py [RULE …] [--rounds 10] [--sites 10] [--seeds 1990,1991]
"""

import argparse
import sys
import tempfile
from pathlib import Path

import yaml

from hansa import HansaError
from hansa.trial import Outcome, outcome, run_trial

HERE = Path(__file__).resolve().parent
RULES = sorted(path.stem for path in HERE.glob("*.yaml"))


def federate(rule: str, sites: int, rounds: int, seed: int, folder: Path) -> Outcome:
    """Run one federation; every rule gets the same number of updates."""
    job = HERE / f"{rule}.yaml"
    job_file = yaml.safe_load(job.read_text())
    has_rounds, hops = "rounds" in job_file["pace"], job_file["pace"].get("hops", 1)
    trained = job_file.get("sample", {}).get("fraction", 1) * hops  # trainings in a round, for each site
    pace = (
        {"pace.rounds": max(1, round(rounds / trained))} if has_rounds else {"pace.updates": rounds * sites}
    )
    changes: dict[str, object] = {**pace, "seed": seed, "data.sites": sites}
    if sites != 10:
        changes["data.partition"] = {"kind": "iid"}  # the example's classes are for ten sites
    return outcome(run_trial(job, folder / f"{rule}-{seed}", changes))


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
                result = federate(rule, chosen.sites, chosen.rounds, seed, Path(folder))
                line = f"{rule:18} {seed:5}  {result.accuracy:7.1%}  {result.loss or float('nan'):7.3f}"
                print(f"{line}  {result.updates:7}  {result.seconds:7.1f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except HansaError as error:
        sys.exit(str(error))
