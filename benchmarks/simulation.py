"""Shows how many clients per second a simulation trains, beside other simulators, and what many sites take.

All simulators train the same perceptron of 9610 parameters: every client takes one step on its 18 examples.
No model is evaluated in the rounds that count. Everything that is compared runs in turns, in processes of its
own, with one thread of PyTorch in each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml
from harness import RESULTS, end_in_order, machine, print_table, save
from peer import installed
from simulation_app import SIDE
from simulation_cases import (
    BATCH,
    COHORT,
    EXAMPLES,
    HERE,
    WARM_UP,
    Figures,
    data_file,
    hansa_cases,
    in_turns,
    job_of,
    peer_cases,
    rate,
    simulated,
)

EVALUATED = "nothing is evaluated in the rounds that count (evaluate.every: 1000000; pfl and Flower alike)"


def conclusions(figures: Figures) -> list[dict[str, Any]]:
    """Compare medians with what was promised."""
    medians = {name: statistics.median(values) for name, values in figures.items()}

    def best(word: str) -> float:
        return max((value for name, value in medians.items() if name.startswith(word)), default=0.0)

    promises = [
        ("one step, loop / pfl, one process each", "hansa loop, 0", "pfl, 1", 1.0),
        ("one step, loop / pfl, two processes", "hansa loop, 2", "pfl, 2", 1.0),
        ("one step, batched / pfl, one process each", "hansa batched, 0", "pfl, 1", 2.0),
        ("one step, batched / pfl, two processes", "hansa batched, 2", "pfl, 2", 2.0),
        ("one step, batched / flower", "hansa batched", "flower", 20.0),
        ("no training / pfl, one process each", "hansa no training, 0", "pfl no training, 1", 0.8),
        ("asynchronous / synchronous, loop", "hansa asynchronous loop, 0", "hansa loop, 0", 0.5),
        ("asynchronous / synchronous, batched", "hansa asynchronous, 0", "hansa batched, 0", 0.5),
    ]
    return [
        {"what": what, "ratio": round(best(ours) / best(theirs), 2), "promise": promise, "at_least": True}
        for what, ours, theirs, promise in promises
        if best(ours) and best(theirs)
    ]


# Many sites.


def many_sites(
    folder: Path, sites: int, cohort: int, rounds: int, workers: int, examples: int
) -> dict[str, Any]:
    """Simulate rounds of a sample of many sites; return its speed and memory."""
    sample = {"sample": {"kind": "uniform", "fraction": cohort / sites}, "pace": {"rounds": rounds}}
    begun = time.monotonic()
    found = simulated(job_of(data_file(folder, sites, examples), sites, **sample), workers=workers)
    moments = found["moments"]
    return {
        "sites": sites,
        "cohort": cohort,
        "workers": workers,
        "clients_per_second": round(rate(moments, cohort, 1)),
        "seconds_to_first_version": round(moments[0] - begun, 2),
        "seconds_to_end": round(time.monotonic() - begun, 2),
        "memory_mib": found["memory"],
        "memory_at_end_mib": found["memory_at_end"],
        "remarks": found["remarks"],
    }


# A network whose training takes most of the time.


def heavy(folder: Path, rounds: int, repeats: int) -> tuple[Figures, dict[str, Any]]:
    """Compare a simulation of a CNN with the same steps by hand."""
    sites, examples = 10, 640
    source = data_file(folder, sites, examples, (1, SIDE, SIDE))
    pace = {"pace": {"rounds": rounds}}

    def ours() -> float:
        return sites / rate(simulated(job_of(source, sites, "heavy", **pace))["moments"], sites, 1)

    def by_hand() -> float:
        words = [sys.executable, HERE / "bare_rounds.py", source, *map(str, (sites, BATCH, rounds))]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        return sites / rate(json.loads(done.stdout), sites, 1)

    seconds: Figures = {"hansa": [], "by hand": []}
    for _ in range(repeats):
        seconds["by hand"].append(round(by_hand(), 3))
        seconds["hansa"].append(round(ours(), 3))
    pairs = zip(seconds["hansa"], seconds["by hand"], strict=True)
    ratio = statistics.median(mine / yours for mine, yours in pairs)
    what = "a CNN, simulated / by hand"
    return seconds, {"what": what, "ratio": round(ratio, 3), "promise": 1.05, "at_least": False}


# Starting.


def start(folder: Path, sites: int, repeats: int) -> tuple[Figures, dict[str, Any]]:
    """Compare a command with one round, its evaluation and its end with the import of PyTorch."""
    job = job_of(data_file(folder, sites, EXAMPLES), sites, pace={"rounds": 1})
    file = folder / "start.yaml"
    file.write_text(yaml.safe_dump(job))
    command = Path(sys.executable).with_name("hansa")
    seconds: Figures = {"hansa simulate": [], "import torch": []}
    for number in range(repeats + 1):
        out = folder / f"start-{number}"
        took = (
            _seconds([command, "simulate", file, "--out", out, "--json"]),
            _seconds([sys.executable, "-c", "import torch"]),
        )
        if number:  # the first time, files are read from the disk
            for name, value in zip(seconds, took, strict=True):
                seconds[name].append(round(value, 2))
    ratio = statistics.median(seconds["hansa simulate"]) / statistics.median(seconds["import torch"])
    what = f"{sites} sites, command to the end of one round / import torch"
    return seconds, {"what": what, "ratio": round(ratio, 2), "promise": 3.0, "at_least": False}


def _seconds(words: list[Any]) -> float:
    begun = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def verdict(case: dict[str, Any]) -> str:
    """Say whether a promise is kept."""
    kept = case["ratio"] >= case["promise"] if case["at_least"] else case["ratio"] <= case["promise"]
    return (
        f"promised {'≥' if case['at_least'] else '≤'} {case['promise']:g}: {'kept' if kept else 'NOT KEPT'}"
    )


def report(parts: dict[str, dict[str, Any]]) -> None:
    """Print the figures."""
    if figures := parts.get("speeds", {}).get("clients_per_second"):
        rows = [
            (name, f"{statistics.median(values):,.0f}", f"{min(values):,.0f} – {max(values):,.0f}")
            for name, values in figures.items()
        ]
        print_table(("simulator", "clients/s", "range"), rows)
    if large := parts.get("many", {}).get("many_sites"):
        rows = [
            (
                *(f"{case[name]:,}" for name in ("sites", "cohort", "workers", "clients_per_second")),
                f"{case['seconds_to_first_version']:.1f}",
                *(f"{case['memory_mib'][name]:.0f}" for name in ("anonymous", "with_workers")),
            )
            for case in large
        ]
        columns = ("sites", "a round", "workers", "clients/s", "first version s")
        print_table((*columns, "driver MiB", "with workers MiB"), rows)
    ratios = [ratio for part in parts.values() for ratio in part["ratios"]]
    print_table(("compared", "ratio", ""), [(c["what"], f"{c['ratio']:.2f}", verdict(c)) for c in ratios])


def main() -> None:
    """Measure the parts that are asked for, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of 100 clients")
    parser.add_argument("--repeats", type=int, default=3, help="how often all simulators take turns")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--scale", type=float, default=1.0, help="for a quick try: a share of the many sites")
    parser.add_argument(
        "--peer", action="append", choices=["flower", "pfl"], default=[], help="also install and run it"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="others stay as they are"
    )
    parser.add_argument("--name", default="simulation", help="the results' file name below results/")
    options = parser.parse_args()
    end_in_order()
    document = _earlier(options.name)
    with tempfile.TemporaryDirectory(prefix="hansa-bench-") as folder, ExitStack() as stack:
        for name in options.parts:
            part = PARTS[name](Path(folder), options, stack)
            document[name] = {"machine": machine(), "evaluate": EVALUATED} | part
            save(options.name, document)  # what there is, if a later part is interrupted
    report({name: document[name] for name in options.parts})
    print(EVALUATED)


def _earlier(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _speeds(folder: Path, options: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    build = f"torch=={torch.__version__}"  # the same for all
    peers = [stack.enter_context(installed(name, build)) for name in dict.fromkeys(options.peer)]
    rounds = options.rounds + WARM_UP
    cases = hansa_cases(folder, rounds, options.workers) | peer_cases(peers, rounds)
    figures = in_turns(cases, options.repeats)
    return {
        "peers": {peer.name: peer.version for peer in peers},
        "settings": {"cohort": COHORT, "examples": EXAMPLES, "rounds": options.rounds},
        "clients_per_second": figures,
        "ratios": conclusions(figures),
    }


def _scaled(number: int, options: argparse.Namespace) -> int:
    return max(COHORT, round(number * options.scale))


def _many(folder: Path, options: argparse.Namespace, _stack: ExitStack) -> dict[str, Any]:
    thousand, ten, hundred = (_scaled(number, options) for number in (1000, 10_000, 100_000))
    large = [many_sites(folder, ten, thousand, 6, count, EXAMPLES) for count in options.workers]
    pair = [many_sites(folder, sites, COHORT, 20, 0, EXAMPLES) for sites in (thousand, ten)]
    large += [*pair, many_sites(folder, hundred, thousand, 4, 0, 4)]
    little, much = (case["memory_mib"]["anonymous"] for case in pair)
    what = f"memory, {ten} / {thousand} sites, data apart"
    ratio = {"what": what, "ratio": round(much / little, 2), "promise": 1.1, "at_least": False}
    return {"many_sites": large, "ratios": [ratio]}


def _cnn(folder: Path, options: argparse.Namespace, _stack: ExitStack) -> dict[str, Any]:
    seconds, ratio = heavy(folder, 4, options.repeats)
    return {"seconds_per_round": seconds, "ratios": [ratio]}


def _start(folder: Path, options: argparse.Namespace, _stack: ExitStack) -> dict[str, Any]:
    seconds, ratio = start(folder, _scaled(1000, options), options.repeats)
    return {"seconds": seconds, "ratios": [ratio]}


PARTS = {"speeds": _speeds, "many": _many, "cnn": _cnn, "start": _start}


if __name__ == "__main__":
    main()
