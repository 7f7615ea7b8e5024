"""Compare training alone, in federations and on pooled data, with the same epochs and test patients.

python examples/hospitals/compare.py [--seeds 3] [--rounds 30] [--federations fedavg equal sync-dvw]
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from app import build
from safetensors.torch import load_file

from hansa import Examples, HansaError, load_npz
from hansa.data import Standard, pooled, profile, standardised
from hansa.trial import run_trial

HERE = Path(__file__).resolve().parent
MEASURED = 5  # columns that are standardised
BATCH, RATE = 16, 0.05
FEDERATIONS: dict[str, dict[str, object]] = {
    "fedavg": {"rule": "fedavg"},
    "equal": {"rule": "fedavg", "weigh": {"kind": "equal"}},
    "sync-dvw": {"rule": "sync-dvw", "validation.fraction": 0.1},  # a tenth is not trained on
}
Hospital = tuple[Examples, Examples]  # for training and for testing


def fit(examples: Examples, epochs: int, seed: int) -> torch.nn.Module:
    """Train by hand as a learner does."""
    torch.manual_seed(seed)
    network = build()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    x, y = torch.from_numpy(examples.x), torch.from_numpy(examples.y)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network


def right(network: torch.nn.Module, test: Examples) -> int:
    """Count the patients whose diagnosis is right."""
    with torch.no_grad():
        return int((network(torch.from_numpy(test.x)).argmax(dim=1).numpy() == test.y).sum())


def by(standard: Standard, hospitals: dict[str, Hospital]) -> dict[str, Hospital]:
    """Standardise all hospitals by one standard."""
    return {
        n: (standardised(train, standard), standardised(test, standard))
        for n, (train, test) in hospitals.items()
    }


def measure(seed: int, rounds: int, federations: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many test patients of each hospital each way of training gets right."""
    correct: dict[str, dict[str, int]] = {way: {} for way in ("guess", "alone", *federations, "pooled")}
    with tempfile.TemporaryDirectory() as folder:
        for rule in federations:
            out = Path(folder) / rule
            # Four learners and four evaluators as real processes; their data stay apart.
            report = run_trial(
                HERE / "job.yaml", out, {"seed": seed, "pace.rounds": rounds, **FEDERATIONS[rule]}
            )
            paths = [path for path in sorted((out / "data").glob("*.npz")) if path.stem != "test"]
            hospitals = {path.stem: (load_npz(path, "train"), load_npz(path, "test")) for path in paths}
            statistics = report["survey"]
            survey = Standard(kind="global", mean=statistics["mean"], deviation=statistics["deviation"])
            federated = build()
            federated.load_state_dict(load_file(out / "model.safetensors"))
            correct[rule] = {
                name: right(federated, test) for name, (_, test) in by(survey, hospitals).items()
            }
    everybody = by(pooled(profile(train.x, MEASURED) for train, _ in hospitals.values()), hospitals)
    parts = [train for train, _ in everybody.values()]
    together = fit(
        Examples(*(np.concatenate([getattr(p, a) for p in parts]) for a in ("x", "y"))), rounds, seed
    )
    for name, (train, test) in hospitals.items():
        # A guess is the more frequent diagnosis among the hospital's own patients.
        correct["guess"][name] = int((test.y == np.bincount(train.y).argmax()).sum())
        own = pooled([profile(train.x, MEASURED)])
        correct["alone"][name] = right(fit(standardised(train, own), rounds, seed), standardised(test, own))
        correct["pooled"][name] = right(together, everybody[name][1])
    correct["patients"] = {name: len(test) for name, (_, test) in hospitals.items()}
    return correct


def main() -> None:
    """Print one table over all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, default=3, help="how many random splits into training and test patients"
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="rounds of the federations; epochs of the others"
    )
    parser.add_argument("--federations", nargs="+", choices=FEDERATIONS, default=list(FEDERATIONS))
    chosen = parser.parse_args()
    runs = [measure(1990 + number, chosen.rounds, chosen.federations) for number in range(chosen.seeds)]
    names = list(runs[0]["patients"])
    total = {name: sum(run["patients"][name] for run in runs) for name in names}
    print(f"accuracy on test patients, {chosen.seeds} splits, {chosen.rounds} rounds or epochs\n")
    print(f"{'':12}" + "".join(f"{name:>14}" for name in (*names, "all")))
    for way in ("guess", "alone", *chosen.federations, "pooled"):
        hits = {name: sum(run[way][name] for run in runs) for name in names}
        shares = [hits[name] / total[name] for name in names] + [sum(hits.values()) / sum(total.values())]
        print(f"{way:12}" + "".join(f"{share:>14.1%}" for share in shares))
    print(f"{'patients':12}" + "".join(f"{count:>14}" for count in (*total.values(), sum(total.values()))))


if __name__ == "__main__":
    try:
        main()
    except HansaError as error:
        sys.exit(str(error))
