"""The cases of the benchmark of simulations: small clients on Hansa, on pfl and on Flower."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peer import Peer
from simulation_app import CLASSES, FEATURES

HERE = Path(__file__).parent
COHORT, EXAMPLES, BATCH = 100, 18, 32
WARM_UP = 5  # rounds that do not count: processes start, blocks are tried
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
Figures = dict[str, list[float]]


def data_file(folder: Path, sites: int, examples: int, shape: tuple[int, ...] = (FEATURES,)) -> Path:
    """Write examples for so many sites."""
    path = folder / f"{sites}x{examples}x{len(shape)}.npz"
    if not path.exists():
        rng = np.random.default_rng(1990)
        x = rng.random((sites * examples, *shape), dtype=np.float32)
        np.savez(path, x=x, y=rng.integers(0, CLASSES, len(x)))
    return path


def job_of(source: Path, sites: int, app: str = "small", **more: Any) -> dict[str, Any]:
    """Return a job; only its last version is evaluated."""
    return {
        "name": "benchmark",
        "app": f"{HERE / 'simulation_app.py'}:{app}",
        "rule": "fedavg",
        "train": {"epochs": 1, "batch_size": BATCH, "optimizer": {"lr": 0.05}},
        "evaluate": {"every": 1_000_000},
        "validation": {"fraction": 0},
        "data": {"source": str(source), "sites": sites, "test": 0},
        **more,
    }


def simulated(job: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Simulate a job in a process of its own."""
    words = [sys.executable, HERE / "simulated.py", json.dumps(job), json.dumps(options)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rate(moments: Sequence[float], each: int, skipped: int = WARM_UP) -> float:
    """Return clients per second, of rounds of `each`, without the first few."""
    return each * (len(moments) - 1 - skipped) / (moments[-1] - moments[skipped])


def in_turns(cases: dict[str, Callable[[], float]], repeats: int) -> Figures:
    """Run cases one after another, several times."""
    figures: Figures = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            figures[name].append(round(case(), 1))
            print(f"  {name}: {figures[name][-1]:,.0f}", flush=True)
    return figures


# Clients per second.


def hansa_cases(folder: Path, rounds: int, workers: Sequence[int]) -> dict[str, Callable[[], float]]:
    """Return our own cases: rounds with the loop, with blocks and without training, and no rounds at all."""
    source, pace = data_file(folder, COHORT, EXAMPLES), {"pace": {"rounds": rounds}}
    updates = rounds * COHORT
    no_rounds = {
        "rule": "fedasync",
        "local": {"kind": "plain"},
        "pace": {"updates": updates},
        "simulate": {"slow": {"kind": "lognormal", "sigma": 0.5}},
    }

    def synchronous(app: str, count: int, batched: bool) -> float:
        found = simulated(job_of(source, COHORT, app, **pace), workers=count, batched=batched)
        return rate(found["moments"], COHORT)

    def asynchronous(count: int, batched: bool) -> float:
        found = simulated(job_of(source, COHORT, **no_rounds), workers=count, batched=batched)
        return rate(found["moments"], 1, WARM_UP * COHORT)

    cases: dict[str, Callable[[], float]] = {}
    for count in workers:
        cases |= {
            f"hansa loop, {count} workers": lambda count=count: synchronous("small", count, False),
            f"hansa batched, {count} workers": lambda count=count: synchronous("small", count, True),
            f"hansa no training, {count} workers": lambda count=count: synchronous("idle", count, True),
            f"hansa asynchronous loop, {count} workers": lambda count=count: asynchronous(count, False),
            f"hansa asynchronous, {count} workers": lambda count=count: asynchronous(count, True),
        }
    return cases


def peer_cases(peers: Sequence[Peer], rounds: int) -> dict[str, Callable[[], float]]:
    """Return the cases of other simulators."""
    cases: dict[str, Callable[[], float]] = {}
    for peer in peers:
        if peer.name == "flower":
            some = max(WARM_UP + 3, rounds // 5)  # a tenth of our speed

            def flower(peer: Peer = peer, some: int = some) -> float:
                return rate(peer.run("flower_training.py", COHORT, some), COHORT)

            cases["flower"] = flower
            continue
        for count, launcher in ((1, ()), (2, TWO)):
            for training in (1, 0):

                def pfl(peer: Peer = peer, launcher: Any = launcher, training: int = training) -> float:
                    words = (COHORT, COHORT, EXAMPLES, rounds, training)
                    return rate(peer.run("pfl_rounds.py", *words, launcher=launcher), COHORT)

                cases[f"pfl{'' if training else ' no training'}, {count} processes"] = pfl
    return cases
