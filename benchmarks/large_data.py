"""Shows how much memory a learner and an evaluator take for a pass over 20 GB of memory-mapped data."""

import argparse
import os
from pathlib import Path
from typing import Any

from federation import Federation
from harness import end_in_order, machine, print_table, save, verdict

PROMISE = 1024.0  # MiB
APP = Path(__file__).with_name("large_app.py")


def measure(kind: str) -> dict[str, Any]:
    """Let one site train for an epoch and evaluate; return the peaks of its processes."""
    with Federation(f"{APP}:{kind}", 1, "disk", evaluators=True) as federation:
        view = federation.run_job(
            rule="fedavg",
            pace={"kind": "sync", "rounds": 1},
            train={"epochs": 1, "batch_size": 256, "optimizer": {"lr": 0.001}},
            validation={"fraction": 0.02},
        )
        peak = federation.peaks()["site"]
    last = view.history[-1]
    rows = sum(update.examples for update in last.updates)
    return {
        "app": kind,
        "rows_trained": rows,
        "rows_evaluated": last.examples,
        "peak_mib": peak,
        "seconds": round(view.history[-1].seconds - view.history[0].seconds, 1),
    }


def main() -> None:
    """Measure with and without a reader process and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=20)
    options = parser.parse_args()
    os.environ["HANSA_BENCH_GB"] = str(options.gb)
    end_in_order()
    described = machine()
    found = [measure(kind) for kind in ("app", "ahead")]
    print_table(
        ("reads", "trained on", "evaluated on", "peak of learner and evaluator", "seconds"),
        [
            (
                "in the learner" if case["app"] == "app" else "by a reader process",
                f"{case['rows_trained']} rows",
                f"{case['rows_evaluated']} rows",
                f"{case['peak_mib']:.0f} MiB",
                f"{case['seconds']:.1f}",
            )
            for case in found
        ],
    )
    worst = max(case["peak_mib"] for case in found)
    print(f"{options.gb:g} GB of data: the peak is {worst:.0f} MiB, {verdict(worst, PROMISE)}")
    save("large_data", {"machine": described, "gb": options.gb, "promise_mib": PROMISE, "cases": found})


if __name__ == "__main__":
    main()
