"""Compares the learner's training loop with hand-written PyTorch loops on the same batches.

Data in memory are indexed by the hand-written loop; those of a Dataset go through PyTorch's DataLoader.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from harness import machine, print_table, save
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from hansa import App
from hansa.common.data.examples import Examples
from hansa.common.data.lazy import Origin, check_dataset
from hansa.common.torch.data import Data, Tensors, to_tensors
from hansa.common.torch.lazy import LazyData
from hansa.common.values.ids import ModelKey
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Train
from hansa.learner.training.loop import train

PROMISE = 1.05
SEED = 1990
OPTIMIZER = OptimizerSpec(kind="sgd", lr=0.05, momentum=0.9)


def digits_mlp() -> nn.Module:
    """Return a small perceptron for 8×8 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def small_cnn() -> nn.Module:
    """Return a small convolutional network for 28×28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


@dataclass(frozen=True)
class Case:
    """One comparison."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rows: int
    batch_size: int
    epochs: int
    lazy: bool = False  # the data are a Dataset, read example by example


CASES = [
    *(
        Case("MLP 8×8", digits_mlp, (64,), 1500, size, epochs)
        for size, epochs in ((8, 1), (16, 2), (64, 4), (256, 10))
    ),
    *(Case("CNN 28×28", small_cnn, (1, 28, 28), 384, size, 1) for size in (8, 32, 128)),
    *(Case("MLP 8×8, Dataset", digits_mlp, (64,), 1500, size, 1, lazy=True) for size in (16, 64)),
    *(Case("CNN 28×28, Dataset", small_cnn, (1, 28, 28), 384, size, 1, lazy=True) for size in (8, 32, 128)),
]


def by_hand(module: nn.Module, data: Tensors, case: Case) -> float:
    """Train as a competent user would write it for tensors in memory; return the last epoch's mean loss."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.SGD(module.parameters(), lr=OPTIMIZER.lr, momentum=OPTIMIZER.momentum)
    criterion = nn.CrossEntropyLoss()
    x, y, n = data.x, data.y, len(data.y)
    module.train()
    mean = 0.0
    for _ in range(case.epochs):
        order = torch.randperm(n, generator=generator)
        running = 0.0
        for start in range(0, n, case.batch_size):
            rows = order[start : start + case.batch_size]
            optimizer.zero_grad()
            loss = criterion(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            running += loss.item() * len(rows)
        mean = running / n
    return mean


class Shuffled(Sampler[list[int]]):
    """The batches of an epoch, in the order in which the learner has them."""

    def __init__(self, rows: int, size: int, generator: torch.Generator) -> None:
        self._rows, self._size, self._generator = rows, size, generator

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self._rows, generator=self._generator)
        return (rows.tolist() for rows in order.split(self._size))  # type: ignore[no-untyped-call]


def by_loader(module: nn.Module, data: Tensors, case: Case) -> float:
    """Train with PyTorch's DataLoader on a Dataset; return the last epoch's mean loss."""
    torch.manual_seed(SEED)
    order = Shuffled(len(data), case.batch_size, torch.Generator().manual_seed(SEED))
    loader = DataLoader(TensorDataset(data.x, data.y), batch_sampler=order)
    optimizer = torch.optim.SGD(module.parameters(), lr=OPTIMIZER.lr, momentum=OPTIMIZER.momentum)
    criterion = nn.CrossEntropyLoss()
    module.train()
    mean = 0.0
    for _ in range(case.epochs):
        running = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(module(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item() * len(y)
        mean = running / len(data)
    return mean


def by_hansa(app: App, module: nn.Module, data: Data, case: Case) -> float:
    """Train as the learner does."""
    work = Train(
        model=ModelKey("none"),
        version=0,
        epochs=case.epochs,
        batch_size=case.batch_size,
        optimizer=OPTIMIZER,
    )
    return train(app, module, data, work, SEED, lambda _epoch, _steps, _loss: None, Event().is_set).loss


def compare(case: Case, repetitions: int) -> dict[str, Any]:
    """Run both loops in turn from the same weights; they must end with the same weights, bit for bit."""
    app = App(model=case.model, task="classification", classes=10)
    rng = np.random.default_rng(SEED)
    x = rng.random((case.rows, *case.shape), dtype=np.float32)
    data = to_tensors(app, Examples(x, rng.integers(0, 10, case.rows)), "cpu")
    torch.manual_seed(SEED)
    ours, hand = case.model(), case.model()
    first = {name: value.clone() for name, value in ours.state_dict().items()}
    examples = check_dataset(app, TensorDataset(data.x, data.y), Origin("", Path("memory"), "train"))
    mine = LazyData(app, examples, "cpu") if case.lazy else data
    theirs = by_loader if case.lazy else by_hand
    runs: dict[str, tuple[nn.Module, Callable[[], float]]] = {
        "ours": (ours, lambda: by_hansa(app, ours, mine, case)),
        "hand": (hand, lambda: theirs(hand, data, case)),
    }
    seconds: dict[str, list[float]] = {"ours": [], "hand": []}
    cpu: dict[str, list[float]] = {"ours": [], "hand": []}
    for repetition in range(-1, repetitions):  # the first one only warms up
        for name in ("ours", "hand") if repetition % 2 else ("hand", "ours"):
            module, run = runs[name]
            module.load_state_dict(first)
            started, used = time.perf_counter(), time.process_time()
            run()
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - started)
                cpu[name].append(time.process_time() - used)
        assert all(map(torch.equal, ours.state_dict().values(), hand.state_dict().values())), (
            "the loops differ"
        )
    pairs = _pairs(seconds)
    return {
        "case": case.name,
        "batch_size": case.batch_size,
        "rows": case.rows,
        "epochs": case.epochs,
        "hansa_seconds": statistics.median(seconds["ours"]),
        "hand_written_seconds": statistics.median(seconds["hand"]),
        "ratio": round(statistics.median(pairs), 4),
        "ratio_interval": [round(bound, 4) for bound in _interval(pairs)],
        "cpu_ratio": round(statistics.median(_pairs(cpu)), 4),
    }


def _interval(values: list[float]) -> tuple[float, float]:
    """Return a 95 % interval for the median by order statistics, which assumes only independent noise."""
    ordered, n = sorted(values), len(values)
    reach = 0.98 * n**0.5  # half of 1.96 standard deviations of a binomial count
    return ordered[max(0, int(n / 2 - reach))], ordered[min(n - 1, int(n / 2 + reach))]


def conclusion(found: list[dict[str, Any]]) -> str:
    """Judge by intervals: the largest of several noisy medians is above the promise by chance alone."""
    lows, highs = zip(*(case["ratio_interval"] for case in found), strict=True)
    if max(highs) <= PROMISE:
        return "kept in every case"
    broken = [
        f"{case['case']} batch {case['batch_size']}" for case in found if case["ratio_interval"][0] > PROMISE
    ]
    return (
        f"NOT KEPT: {', '.join(broken)}"
        if max(lows) > PROMISE
        else "undecided: the noise is larger than the margin"
    )


def _pairs(seconds: dict[str, list[float]]) -> list[float]:
    """Return the ratio of each repetition: what disturbs one loop mostly disturbs its neighbour, too."""
    return [mine / yours for mine, yours in zip(seconds["ours"], seconds["hand"], strict=True)]


def main() -> None:
    """Compare every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=101, help="timed runs of each loop per case")
    parser.add_argument(
        "--threads", type=int, default=1, help="PyTorch's threads; `hansa run` gives each site one"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    described = machine()
    found = [compare(case, options.repetitions) for case in CASES]
    print_table(
        ("model", "batch", "hand-written ms", "hansa ms", "ratio", "95 % interval", "CPU ratio"),
        [
            (
                str(case["case"]),
                str(case["batch_size"]),
                f"{1000 * case['hand_written_seconds']:.1f}",
                f"{1000 * case['hansa_seconds']:.1f}",
                f"{case['ratio']:.3f}",
                "{:.3f} – {:.3f}".format(*case["ratio_interval"]),
                f"{case['cpu_ratio']:.3f}",
            )
            for case in found
        ],
    )
    worst = max(case["ratio"] for case in found)
    typical = statistics.geometric_mean(case["ratio"] for case in found)
    judged = conclusion(found)
    print(f"mean ratio {typical:.3f}, worst {worst:.3f}; promised ≤ {PROMISE}: {judged}")
    settings = {"repetitions": options.repetitions, "threads": options.threads}
    summary = {"promise": PROMISE, "mean_ratio": round(typical, 4), "worst_ratio": worst, "verdict": judged}
    save("training_loop", {"machine": described, **settings, **summary, "cases": found})


if __name__ == "__main__":
    main()
