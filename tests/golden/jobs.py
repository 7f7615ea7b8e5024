"""The jobs whose community models are golden values, by family: one controller with its sites runs a family.

A family of `PORTABLE` gives the same bits on every machine. A family of `MACHINE` trains with PyTorch, or
solves something by iteration: its bits depend on the processor and on the libraries.
"""

from typing import Any

from tests.golden.fleet import FIXED, FIXED_TORCH, LIGHT, PLAIN, TORCH

Family = dict[str, dict[str, Any]]
SOME = {"kind": "uniform", "fraction": 0.6}
GLOBAL, LOCAL = {"standardise": "global"}, {"standardise": "local", "columns": 2}


def _job(
    rule: str, rounds: int = 4, epochs: int | None = 2, lr: float = 0.03125, **more: Any
) -> dict[str, Any]:
    train = {"batch_size": 4, "optimizer": {"lr": lr}} | ({"epochs": epochs} if epochs else {})
    train |= more.pop("train", {})
    return {"rule": rule, "pace": {"rounds": rounds} | more.pop("pace", {}), "train": train, **more}


def _travel(rule: str = "radfed", hops: int = 3, **more: Any) -> dict[str, Any]:
    pace = {"hops": hops} | more.pop("pace", {})
    return _job(rule, rounds=2, pace=pace, **({"sample": {"fraction": 0.6}} | more))


MEANS: Family = {
    "fedavg": _job("fedavg", sample=SOME, survey=GLOBAL),
    "fedavg of equal weights": _job("fedavg", weigh={"kind": "equal"}, survey=LOCAL),
    "fedavg of used examples": _job(
        "fedavg", weigh={"kind": "used"}, survey={"classes": True}, merge={"kind": "latest"}
    ),
    "fedavg of last updates": _job("fedavg", sample=SOME, merge={"kind": "incremental"}),
    "server-mix": _job("server-mix", sample=SOME),
    "fedadam": _job("fedadam", sample=SOME),
    "fedyogi": _job("fedyogi"),
    "fedadagrad": _job("fedadagrad", survey=GLOBAL),
    "fedavgm": _job("fedavgm", sample=SOME),
    "fednova": _job("fednova", sample=SOME, survey=GLOBAL),
    "fednova with a given number of steps": _job("fednova", server={"tau": 3.0}),
    "sync-dvw": _job("sync-dvw", 3, epochs=1),
    "sync-dvw by macro F1": _job("sync-dvw", 2, sample=SOME, weigh={"metric": "macro_f1"}),
    "sync-dvw by loss": _job("sync-dvw", 2, weigh={"metric": "inverse_loss"}),
}
ROBUST: Family = {
    "median": _job("median"),
    "trimmed-mean": _job("trimmed-mean", merge={"trim": 0.2}),
    "krum": _job("krum"),
    "multi-krum": _job("multi-krum", sample={"kind": "uniform", "fraction": 1.0}),
    "multi-krum with momentum": _job(
        "multi-krum", sample=SOME, merge={"attackers": 0}, server={"kind": "momentum"}
    ),
}
WINDOWS: Family = {
    "fedsmb": _job("fedsmb", 5, epochs=None),
    "fedmmb": _job("fedmmb", 4, epochs=None, train={"batches": 3}, sample=SOME),
    "fedmmb with dvw and mix": _job(
        "fedmmb", 3, epochs=None, train={"batches": 5}, weigh={"kind": "dvw"}, server={"kind": "mix"}
    ),
}
TRAVELLING: Family = {
    "radfed": _travel(survey=GLOBAL),
    "radfed of one hop": _travel(hops=1),
    "radfed without repeats": _travel(
        pace={"no_repeat": True, "weight": "hops", "catch_up": 1, "divergence": "delta"}
    ),
    "radfed-m": _travel("radfed-m", sample={"fraction": 0.4}),
    "radfed-a": _travel("radfed-a"),
    "radfed with dvw": _travel(weigh={"kind": "dvw"}, epochs=1),
    "radfed with median": _travel(merge={"kind": "median"}),
}
DIVIDED: Family = {
    "divide": _job("divide", 6, layers={"prepass": 2, "decay": 0.5, "feature_epochs": 2}),
    "divide again from version 0": _job(
        "divide", 5, layers={"prepass": 1, "decay": 0.5, "restart": True}, sample=SOME
    ),
    "divide after a layer": _job(
        "divide",
        4,
        layers={"prepass": 0, "split": 2, "decay": 1.0, "fine_epochs": 1},
        weigh={"kind": "examples"},
    ),
    "divide with yogi": _job(
        "divide", 4, layers={"prepass": 0, "split": 1, "decay": 0.5}, server={"kind": "yogi"}
    ),
    "divide and travel": _travel(layers={"kind": "divide", "prepass": 0, "split": 1, "decay": 0.5}),
}
STATISTICS: Family = {
    "means of variances": _job("fedavg", sample=SOME),
    "pooled variances": _job("fedavg", merge={"kind": "mean", "bn": "pooled"}),
    "statistics with adam": _job("fedadam", merge={"kind": "mean", "bn": "pooled"}),
    "statistics with mix": _job("server-mix"),
    "median of statistics": _job("median"),
}
PROXIMAL: Family = {
    "fedavg with batch norm": _job("fedavg", 3, sample=SOME, survey=GLOBAL),
    "fedavg with pooled batch norm": _job("fedavg", 3, merge={"kind": "mean", "bn": "pooled"}),
    "fedavg with statistics of each site": _job("fedavg", 3, layers={"kind": "parameters"}),
    "fedprox": _job("fedprox", 3, local={"mu": 0.5}),
    "scaffold": _job("scaffold", 4, sample=SOME),
    "scaffold with statistics of each site": _job("scaffold", 3, layers={"kind": "parameters"}),
    "kept adam": _job("fedavg", 3, train={"keep_optimizer": True, "optimizer": {"kind": "adam", "lr": 0.01}}),
    "radfed-p": _travel("radfed-p", local={"mu": 0.5}),
    "radfed-i": _travel("radfed-i", sample={"fraction": 0.4}),
    "radfed-i after probes": _travel("radfed-i", sample={"fraction": 0.4, "init": "probe"}),
    "importance online": _job("fedavg", 4, sample={"kind": "importance", "fraction": 0.4, "online": True}),
    "fednova with a proximal term": _job("fednova", 3, local={"kind": "proximal", "mu": 0.5}),
    "fednova with momentum": _job("fednova", 3, train={"optimizer": {"lr": 0.03125, "momentum": 0.5}}),
    "q-fedavg": _job("q-fedavg", 3),
    "q-fedavg of a few sites": _job("q-fedavg", 3, sample=SOME, weigh={"q": 2.0}, server={"q": 2.0}),
    "power of choice": _job(
        "fedavg", 3, sample={"kind": "power-of-choice", "candidates": 4, "fraction": 0.4}
    ),
    "fedmmb in PyTorch": _job("fedmmb", 3, epochs=None, train={"batches": 3}),
    "divide in PyTorch": _job("divide", 4, layers={"prepass": 1}, epochs=2),
    "sync-dvw in PyTorch": _job("sync-dvw", 2),
    "sync-dvw until": _job("sync-dvw", 2, train={"until": {"max_epochs": 4, "vc_loss": 2.0}}),
}
OWN: Family = {
    "fedper": _job("fedper", sample=SOME),
    "fedper of two layers": _job("fedper", layers={"last": 2}, server={"kind": "momentum"}),
    "what is named travels": _job("fedavg", layers={"kind": "trainable", "match": ["second.*", "third.*"]}),
    "adapters travel and the last layer stays": _job(
        "fedadam", layers={"kind": "trainable", "match": ["second.*"], "personal": ["third.*"]}
    ),
}
OWN_IN_TORCH: Family = {
    "fedbn": _job("fedbn", 3),
    "fedper in PyTorch": _job("fedper", 3, sample=SOME),
    "fedrep": _job("fedrep", 3, epochs=None, local={"head_epochs": 2}),
}
FUSED: Family = {
    "feddaf by mixtures": _job("feddaf", 3, weigh={"backend": "em", "refit": 1, "time_limit": 100}),
    "feddaf": _job("feddaf", 2, weigh={"backend": "vae", "time_limit": 100}),
}
PORTABLE: dict[str, tuple[str, Family]] = {
    "means": (PLAIN, MEANS),
    "robust": (PLAIN, ROBUST),
    "windows": (PLAIN, WINDOWS),
    "travelling": (PLAIN, TRAVELLING),
    "divided": (PLAIN, DIVIDED),
    "statistics": (LIGHT, STATISTICS),
    "personal": (FIXED, OWN),
}
MACHINE: dict[str, tuple[str, Family]] = {
    "pytorch": (TORCH, PROXIMAL),
    "personal": (FIXED_TORCH, OWN_IN_TORCH),
    "fusion": (LIGHT, FUSED),
}
