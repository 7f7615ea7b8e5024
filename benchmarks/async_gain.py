"""Shows what asynchronous rules gain if half of the sites are slow: merges and updates in the same time."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from federation import Federation
from harness import end_in_order, machine, print_table, save

APP = f"{Path(__file__).with_name('paced_app.py')}:app"
RULES = ("fedavg", "async-fedavg", "sync-dvw", "async-dvw")
NEVER = 1_000_000  # rounds or updates: the time ends a job


def measure(
    rules: Sequence[str], sites: int, factor: float, seconds: float, warm_up: int = 1
) -> list[dict[str, Any]]:
    """Run one job for each rule for the same time; every second site is slowed."""
    judged = any("dvw" in rule for rule in rules)
    names = [f"site-{n}" for n in range(1, sites + 1)]
    slow = dict.fromkeys(names[1::2], factor)
    found = []
    with Federation(APP, sites, "disk", slow=slow, evaluators=judged) as federation:
        federation.run(warm_up)  # until every site is up and has trained once
        for rule in rules:
            paced = "updates" if rule.startswith("async") else "rounds"
            view = federation.run_job(
                rule=rule,
                pace={paced: NEVER},
                train={"epochs": 4, "batch_size": 16},
                validation={"fraction": 0.1},
                evaluate={"every": NEVER},
                stop={"seconds": seconds},
            )
            by = {name: sum(name in entry.sites for entry in view.history) for name in names}
            found.append(
                {
                    "rule": rule,
                    "status": view.status,
                    "reason": view.reason,
                    "seconds": seconds,
                    "merges": view.version,
                    "updates": sum(by.values()),
                    "updates_of_fast": sum(count for name, count in by.items() if name not in slow),
                    "updates_of_slow": sum(by[name] for name in slow),
                }
            )
    return found


def main() -> None:
    """Print one row for each rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=10, help="half of them are slow")
    parser.add_argument("--factor", type=float, default=5.0, help="how much slower slow sites are")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each job")
    parser.add_argument("--rules", nargs="+", default=RULES)
    chosen = parser.parse_args()
    end_in_order()
    described = machine()
    found = measure(chosen.rules, chosen.sites, chosen.factor, chosen.seconds)
    rows = [
        (
            row["rule"],
            f"{row['merges'] / row['seconds']:.2f}",
            f"{row['updates'] / row['seconds']:.2f}",
            str(row["updates_of_fast"]),
            str(row["updates_of_slow"]),
            row["status"],
        )
        for row in found
    ]
    slowed = f"every second one {chosen.factor:g} × slower"
    print(f"{chosen.sites} sites, {slowed}, {chosen.seconds:g} s for each job\n")
    print_table(("rule", "merges/s", "updates/s", "of fast sites", "of slow sites", "job"), rows)
    settings = {"sites": chosen.sites, "factor": chosen.factor, "seconds": chosen.seconds}
    save("async_gain", {"machine": described, **settings, "results": found})


if __name__ == "__main__":
    main()
