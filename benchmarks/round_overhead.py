"""Shows the cost of a round compared with bare gRPC that moves the same bytes: 8 sites, no training."""

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

import numpy as np
from bare_grpc import BareGrpc
from blake3 import blake3
from federation import Federation, round_seconds
from harness import end_in_order, machine, print_table, save, verdict
from peer import IDLE, run_peer

from hansa.common.models.frames import Layout
from hansa.common.models.model import ModelSpec
from hansa.common.torch.networks import describe

PROMISE = 2.0
WARM_UP = 2  # rounds of each job that are not counted: connections open, caches fill; nor is the first job


def payload_size(parameters: int) -> int:
    """Return the bytes of the idle app's model on the wire."""
    import idle_app

    spec: ModelSpec = describe(getattr(idle_app, f"idle_{parameters}").model())
    return Layout(spec).size


def limits(size: int) -> dict[str, float]:
    """Measure, on one core and in GB/s, what no implementation can avoid: copies, digests, durable writes."""
    source = np.random.default_rng(1).integers(0, 255, max(size, 32 << 20), dtype=np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    copy = min(_timed(lambda: np.copyto(target, source)) for _ in range(5))
    digest = min(_timed(lambda: blake3(source.data).digest()) for _ in range(3))
    with tempfile.NamedTemporaryFile(prefix="hansa-bench-") as file:

        def write() -> None:
            os.pwrite(file.fileno(), source.data, 0)
            os.fdatasync(file.fileno())

        disk = statistics.median(_timed(write) for _ in range(3))
    rates = {"memcpy": copy, "blake3": digest, "durable_write": disk}
    return {name: round(source.size / seconds / 1e9, 3) for name, seconds in rates.items()}


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(parameters: int, rounds: int, repeats: int, sites: int, store: str) -> dict[str, Any]:
    """Run bare rounds and jobs in turn, so that both see the same noise."""
    size = payload_size(parameters)
    bare: list[float] = []
    federated: list[float] = []
    history: list[Any] = []
    federation, yardstick = Federation(f"idle_{parameters}", sites, store), BareGrpc(sites, size)
    with yardstick, federation:
        yardstick.rounds(WARM_UP + 1)
        # In the first job the controller loads its compiled sums.
        first = round_seconds(federation.run(rounds + WARM_UP), WARM_UP)
        for _ in range(repeats):
            bare += yardstick.rounds(rounds)
            view = federation.run(rounds + WARM_UP)
            federated += round_seconds(view, WARM_UP)
            history += view.history[WARM_UP + 1 :]
        bare += yardstick.rounds(rounds)
        phases = _phases(federation.notes())
        status = federation.status()
    ours, theirs = statistics.median(federated), statistics.median(bare)
    return {
        "parameters": parameters,
        "sites": sites,
        "store": store,
        "rounds_measured": len(federated),
        "model_bytes": size,
        "bytes_per_round": 2 * sites * size,
        "hansa_bytes_up": statistics.median(entry.bytes_up for entry in history),
        "hansa_bytes_down": statistics.median(entry.bytes_down for entry in history),
        "bare_seconds": round(theirs, 4),
        "hansa_seconds": round(ours, 4),
        "ratio": round(ours / theirs, 3),
        "bare_all": [round(value, 4) for value in bare],
        "hansa_all": [round(value, 4) for value in federated],
        "hansa_first_job": [round(value, 4) for value in first],
        "phases": phases,
        "controller_peak_memory_mib": status.peak_memory_mib,
        "gigabytes_per_second": limits(size),
    }


def _phases(notes: dict[str, list[tuple[str, int, float]]]) -> dict[str, float]:
    """Split a round by the sites' notes: how far apart they begin, and the time from round to round."""
    rounds: dict[int, dict[str, list[float]]] = {}
    for entries in notes.values():
        job = 0
        last = 0
        for what, number, moment in entries:
            job += number < last  # rounds begin again: the next job
            last = number
            rounds.setdefault(1000 * job + number, {}).setdefault(what, []).append(moment)
    pairs = [(rounds[n], rounds[n + 1]) for n in sorted(rounds) if n + 1 in rounds and n % 1000 > WARM_UP]
    return {
        "entries_from_first_to_last": round(
            statistics.median(max(a["enter"]) - min(a["enter"]) for a, _ in pairs), 4
        ),
        "last_leave_to_first_enter": round(
            statistics.median(min(b["enter"]) - max(a["leave"]) for a, b in pairs), 4
        ),
        "in_train": round(
            statistics.median(
                leave - enter for a, _ in pairs for enter, leave in zip(a["enter"], a["leave"], strict=True)
            ),
            5,
        ),
    }


def report(found: list[dict[str, Any]]) -> None:
    """Print the figures."""
    print_table(
        (
            "parameters",
            "store",
            "moved per round",
            "bare gRPC s",
            "hansa s",
            "ratio",
            "controller peak",
            "remark",
        ),
        [
            (
                f"{case['parameters']:,}",
                case["store"],
                f"{case['bytes_per_round'] / 1e6:.0f} MB",
                f"{case['bare_seconds']:.3f}",
                f"{case['hansa_seconds']:.3f}",
                f"{case['ratio']:.2f}",
                f"{case['controller_peak_memory_mib']:.0f} MiB",
                verdict(case["ratio"], PROMISE),
            )
            for case in found
        ],
    )
    for case in found:
        rates = case["gigabytes_per_second"]
        moved = case["bytes_per_round"] / 1e9
        copy, write = moved / rates["memcpy"], moved / 2 / rates["durable_write"]
        print(
            f"{case['parameters']:,} parameters: one core copies {rates['memcpy']:.1f} GB/s"
            f" (one copy of a round: {copy:.3f} s), digests {rates['blake3']:.1f} GB/s,"
            f" writes durably {rates['durable_write']:.2f} GB/s (a round's updates: {write:.3f} s)"
        )


def compare(name: str, case: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Run another framework's rounds with the sites and parameters of a case that was just measured."""
    found = run_peer(name, case["sites"], case["parameters"], rounds + WARM_UP)
    seconds = statistics.median(found["seconds"][WARM_UP:])
    return {
        "peer": name,
        "version": found["version"],
        "parameters": case["parameters"],
        "sites": case["sites"],
        "peer_seconds": round(seconds, 4),
        "hansa_seconds": case["hansa_seconds"],
        "hansa_share": round(case["hansa_seconds"] / seconds, 3),
        "peer_all": [round(value, 4) for value in found["seconds"]],
    }


def report_peers(found: list[dict[str, Any]]) -> None:
    """Print other frameworks beside ours."""
    print_table(
        ("peer", "version", "parameters", "peer s per round", "hansa s per round", "hansa / peer"),
        [
            (
                case["peer"],
                case["version"],
                f"{case['parameters']:,}",
                f"{case['peer_seconds']:.3f}",
                f"{case['hansa_seconds']:.3f}",
                f"{case['hansa_share']:.2f}",
            )
            for case in found
        ],
    )


def main() -> None:
    """Measure every size and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--rounds", type=int, help="rounds per job (default: 10, and 5 from 5 M parameters on)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often bare rounds and a job take turns")
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--store", choices=("disk", "memory"), default="disk")
    parser.add_argument(
        "--peer", action="append", choices=sorted(IDLE), default=[], help="also install and run it"
    )
    parser.add_argument("--name", default="round_overhead", help="the results' file name below results/")
    options = parser.parse_args()
    end_in_order()
    described = machine()
    found, peers = [], []
    for parameters in options.parameters:
        rounds = options.rounds or (5 if parameters >= 5_000_000 else 10)
        found.append(measure(parameters, rounds, options.repeats, options.sites, options.store))
        peers += [compare(name, found[-1], rounds) for name in options.peer]
    report(found)
    if peers:
        report_peers(peers)
    save(options.name, {"machine": described, "promise": PROMISE, "cases": found, "peers": peers})


if __name__ == "__main__":
    main()
