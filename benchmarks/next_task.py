"""Shows how long learners wait for the next task after the last update of a round: 8 sites, a tiny model."""

import argparse
import statistics
from typing import Any

from federation import Federation
from harness import machine, print_table, save, verdict

PROMISE = 20.0  # milliseconds
WARM_UP = 3
Notes = dict[str, list[tuple[str, int, float]]]


def by_round(notes: Notes) -> dict[int, dict[str, list[float]]]:
    """Group the sites' notes by round; an offer and a receipt belong to the round of the last training."""
    found: dict[int, dict[str, list[float]]] = {}
    for entries in notes.values():
        trained = 0
        for what, number, moment in entries:
            if what == "leave":
                trained = number
            found.setdefault(trained if number < 0 else number, {}).setdefault(what, []).append(moment)
    return found


def gaps(notes: Notes, sites: int) -> dict[str, list[float]]:
    """Return the waits of every site and round, in milliseconds."""
    rounds = by_round(notes)
    found: dict[str, list[float]] = {"receipt_to_task": [], "leave_to_task": [], "leave_to_enter": []}
    for number in sorted(rounds):
        this, after = rounds[number], rounds.get(number + 1, {})
        if number <= WARM_UP or len(this.get("receipt", ())) != sites or len(after.get("enter", ())) != sites:
            continue
        found["receipt_to_task"] += [1000 * (moment - max(this["receipt"])) for moment in after["take"]]
        found["leave_to_task"] += [1000 * (moment - max(this["leave"])) for moment in after["take"]]
        found["leave_to_enter"] += [1000 * (moment - max(this["leave"])) for moment in after["enter"]]
    return found


MEANING = {
    "receipt_to_task": "last receipt at its learner → next task in hand, each site (the promise)",
    "leave_to_task": "last site leaves train() → next task in hand: also digest, offer, upload, commit",
    "leave_to_enter": "last site leaves train() → next train() begins: also the download",
}


def main() -> None:
    """Run one job of many short rounds and write what the learners noted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--store", choices=("disk", "memory"), default="disk")
    parser.add_argument("--name", default="next_task", help="the results' file name below results/")
    options = parser.parse_args()
    described = machine()
    with Federation(f"probed_{options.parameters}", options.sites, options.store) as federation:
        federation.run(options.rounds)
        found = gaps(federation.notes(), options.sites)
    milliseconds: dict[str, dict[str, Any]] = {}
    for name, values in found.items():
        quartiles = statistics.quantiles(values)
        milliseconds[name] = {
            "median": round(quartiles[1], 2),
            "quartiles": [round(quartiles[0], 2), round(quartiles[2], 2)],
            "waits": len(values),
        }
    print_table(
        ("median ms", "quartiles", "what"),
        [
            (f"{held['median']:.1f}", "{:.1f} – {:.1f}".format(*held["quartiles"]), MEANING[name])
            for name, held in milliseconds.items()
        ],
    )
    print(verdict(milliseconds["receipt_to_task"]["median"], PROMISE) + " ms")
    settings = {"parameters": options.parameters, "sites": options.sites, "store": options.store}
    save(
        options.name, {"machine": described, **settings, "promise_ms": PROMISE, "milliseconds": milliseconds}
    )


if __name__ == "__main__":
    main()
