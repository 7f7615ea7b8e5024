"""Shows what `layers: trainable` saves: LoRA adapters on a frozen network of 100 M parameters, two sites."""

import argparse
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import adapter_app
from federation import Federation, round_seconds
from harness import end_in_order, machine, print_table, save, verdict

from hansa.common.models.frames import seal
from hansa.common.models.model import Manifest
from hansa.common.rpc import codec
from hansa.common.torch import networks
from hansa.common.values.settings.training import Travel

APP = Path(adapter_app.__file__)
PROMISE = 1.01  # bytes up, as a multiple of the bytes of the tensors that must travel
SITES = 2
SEED = 1990
WARM_UP = 1  # rounds that are not counted: the first one fetches a whole model and loads the compiled sums
TRAIN = {"epochs": 1, "batch_size": 2, "optimizer": {"kind": "sgd", "lr": 0.01}}


class Case(NamedTuple):
    """A way to fine-tune the network."""

    name: str
    app: str  # what is added to the app's name
    layers: dict[str, Any]


CASES = (
    Case("LoRA, everything travels", "", {"kind": "all"}),
    Case("LoRA, layers: trainable", "", {"kind": "trainable"}),
    Case("LoRA with A frozen", "", {"kind": "trainable", "match": ["*.lora_b"]}),
    Case("full fine-tuning", "_full", {"kind": "all"}),
)


def tensor_bytes(size: str, case: Case) -> dict[str, int]:
    """Return the bytes of the network, of what is trained, and of the manifest of what travels."""
    network = networks.build(getattr(adapter_app, size + case.app), SEED, "cpu")
    must_travel = networks.sets_of(network, Travel(**{**case.layers, "kind": "trainable"})).travelling
    travelling = networks.sets_of(network, Travel(**case.layers)).travelling
    spec = networks.describe(network)
    manifest: Manifest = seal(spec.subset(travelling), networks.payload_of(network, spec.subset(travelling)))
    return {
        "network": sum(info.nbytes for info in spec.tensors),
        "trained": sum(info.nbytes for info in spec.subset(must_travel).tensors),
        "manifest": codec.manifest_to_wire(manifest).ByteSize(),
    }


def measure(size: str, case: Case, rounds: int) -> dict[str, Any]:
    """Run one job with a controller and sites of its own, so that peaks of memory are those of this job."""
    sizes = tensor_bytes(size, case)
    with Federation(f"{APP}:{size}{case.app}", SITES, "disk") as federation:
        view = federation.run_job(
            seed=SEED,
            rule="fedavg",
            pace={"kind": "sync", "rounds": rounds + WARM_UP},
            layers=case.layers,
            train=TRAIN,
            validation={"fraction": 0.0},
        )
        peaks = federation.peaks()
    counted = view.history[1 + WARM_UP :]
    training = [max(update.seconds for update in entry.updates) for entry in counted]
    seconds = round_seconds(view, WARM_UP)
    # The history counts frames; the manifest that offers them is on the wire as well.
    up = statistics.median(entry.bytes_up for entry in counted) / SITES + sizes["manifest"]
    return {
        "case": case.name,
        "layers": case.layers,
        "sites": SITES,
        "rounds_measured": len(counted),
        "network_bytes": sizes["network"],
        "trained_bytes": sizes["trained"],
        "manifest_bytes": sizes["manifest"],
        "bytes_up": round(up),
        "up_ratio": round(up / sizes["trained"], 4),
        "bytes_down_first": view.history[1].bytes_down // SITES,
        "bytes_down": round(statistics.median(entry.bytes_down for entry in counted) / SITES),
        "round_seconds": round(statistics.median(seconds), 3),
        "seconds_without_training": round(
            statistics.median(whole - part for whole, part in zip(seconds, training, strict=True)), 3
        ),
        "learner_peak_mib": peaks["site"],
        "controller_peak_mib": peaks["controller"],
    }


def report(cases: list[dict[str, Any]], bare: dict[str, Any]) -> None:
    """Print the figures beside what no implementation can avoid."""
    print_table(
        (
            *("case", "up MB", "trained MB", "ratio", "down MB (first)", "s per round", "without training"),
            *("learner MiB", "controller MiB", "remark"),
        ),
        [
            (
                case["case"],
                f"{case['bytes_up'] / 1e6:.2f}",
                f"{case['trained_bytes'] / 1e6:.2f}",
                f"{case['up_ratio']:.3f}",
                f"{case['bytes_down'] / 1e6:.2f} ({case['bytes_down_first'] / 1e6:.2f})",
                f"{case['round_seconds']:.2f}",
                f"{case['seconds_without_training']:.2f}",
                f"{case['learner_peak_mib']:.0f}",
                f"{case['controller_peak_mib']:.0f}",
                verdict(case["up_ratio"], PROMISE) if case["layers"]["kind"] == "trainable" else "",
            )
            for case in cases
        ],
    )
    network = cases[0]["network_bytes"]
    print(
        "limits: what is trained must go up and, merged, come down; a learner must hold the network,"
        f" {network / 2**20:.0f} MiB. With two layers ({bare['network_bytes'] / 2**20:.1f} MiB) a learner"
        f" takes {bare['learner_peak_mib']:.0f} MiB, the controller {bare['controller_peak_mib']:.0f} MiB."
    )
    for case in cases:
        networks_held = (case["learner_peak_mib"] - bare["learner_peak_mib"]) * 2**20 / case["network_bytes"]
        times = cases[0]["bytes_up"] / case["bytes_up"]
        print(f"{case['case']}: 1/{times:.1f} of the bytes up; a learner holds {networks_held:.2f} networks")


def main() -> None:
    """Measure every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--rounds", type=int, default=4, help="that are counted")
    parser.add_argument("--name", default="adapters", help="the results' file name below results/")
    options = parser.parse_args()
    end_in_order()
    described = machine()
    bare = measure("small", CASES[1], options.rounds)
    cases = [measure(options.size, case, options.rounds) for case in CASES]
    report(cases, bare)
    save(options.name, {"machine": described, "promise": PROMISE, "two_layers": bare, "cases": cases})


if __name__ == "__main__":
    main()
