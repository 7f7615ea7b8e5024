"""Shows what a fit of FedDAF costs on one core, and that it finds planted groups.

Vectors of 19,200 statistics (ResNet18's normalisation layers) for up to 200 sites in groups that differ in a
tenth of their numbers. Promise: ≤ 5 s for 50 sites with the autoencoder. A fit is made once in ten rounds.
"""

import argparse
import os
import time
from typing import Any

import numpy as np
from harness import machine, print_table, save, verdict

from hansa.controller.rules.fusion.fit import Fit, Method, fit

WIDTH = 19_200
PROMISE = 5.0  # seconds, 50 sites, autoencoder
CASES = ((10, 10), (30, 15, 5), (40, 10), (20, 15, 10, 5), (160, 40))


def planted(sizes: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors, and the group of each."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    shifts = rng.normal(size=(len(sizes), WIDTH)) * (rng.random(WIDTH) < 0.1)
    return shifts[labels] + rng.normal(size=(len(labels), WIDTH)), labels


def exact(found: Fit, labels: np.ndarray) -> bool:
    """Whether two sites share a component exactly if they share a group."""
    mine = found.allocation.argmax(axis=1)
    return bool(((mine[:, None] == mine) == (labels[:, None] == labels)).all())


def measure(sizes: tuple[int, ...], backend: str, seeds: int) -> dict[str, Any]:
    """Fit several times; processor seconds, so that other work does not count."""
    count, cpu, wall, right = sum(sizes), [], [], 0
    for seed in range(seeds):
        vectors, labels = planted(sizes, seed)
        base, steps = np.full(count, 1 / count), np.full(count, 10)
        began, ticked = time.process_time(), time.perf_counter()
        found = fit(vectors, base, steps, Method(backend="em" if backend == "em" else "vae"), (seed, 1))
        cpu.append(time.process_time() - began)
        wall.append(time.perf_counter() - ticked)
        right += exact(found, labels)
    return {
        "groups": list(sizes),
        "backend": backend,
        "cpu": max(cpu),
        "wall": max(wall),
        "exact": right,
        "of": seeds,
    }


def main() -> None:
    """Print one line for each set of groups and backend."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the promise is for one core
    measure((4, 4), "vae", 1)  # imports
    found = [measure(sizes, backend, seeds) for sizes in CASES for backend in ("em", "vae")]
    rows = [
        (
            "+".join(map(str, case["groups"])),
            case["backend"],
            f"{case['cpu']:.2f} s",
            f"{case['wall']:.2f} s",
            f"{case['exact']}/{case['of']}",
        )
        for case in found
    ]
    print_table(("sites", "backend", "longest fit, processor", "longest fit, clock", "groups exact"), rows)
    worst = max(case["cpu"] for case in found if case["backend"] == "vae" and sum(case["groups"]) == 50)
    print(f"50 sites, autoencoder: {worst:.2f} s of processor; {verdict(worst, PROMISE)}")
    save("fusion", {"machine": machine(), "width": WIDTH, "cases": found})


if __name__ == "__main__":
    main()
