"""Windows through the training loop and the mean: what FedSMB and FedMMB equal (fedmmb §4, §7).

One batch at each site, plain SGD and weights by the examples used are one step of central SGD on all the
batches together. A window of all batches is an epoch of FedAvg.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.site.files import DiskFiles
from hansa.common.torch.data import Tensors
from hansa.common.torch.model import load, spec_of
from hansa.common.torch.seeding import task_seed
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.controller.plugin.arithmetic import MergeInfo
from hansa.controller.rules.baselines.fedopt import Momentum
from hansa.learner.plugins.proximal import Pull
from hansa.learner.training.loop import train
from hansa.learner.training.window import Windows
from tests.unit.community.test_mean import Bench, Weighted, tensors

FEATURES, CLASSES = 6, 3
Arrays = Mapping[str, np.ndarray]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def network(*more: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 9), *more, nn.ReLU(), nn.Linear(9, CLASSES))


APP = App(model=network, classes=CLASSES)


def site_data(sizes: Sequence[int], one_class_each: bool, dtype: torch.dtype) -> list[Tensors]:
    """Return the sites' data: classes lie apart, and a site may hold only one of them."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for number, size in enumerate(sizes):
        y = torch.full((size,), number % CLASSES) if one_class_each else torch.arange(size) % CLASSES
        x = torch.randn(size, FEATURES, generator=generator, dtype=dtype) + y[:, None]
        found.append(Tensors(x, y))
    return found


@dataclass
class Federation:
    """Sites with the learner's own parts, and the controller's mean; no wire between them."""

    folder: Path
    pool: Executor
    data: Sequence[Tensors]
    module: nn.Module
    size: int
    batches: int = 0
    optimizer: OptimizerSpec = field(default_factory=lambda: OptimizerSpec(lr=0.1))
    used: list[list[torch.Tensor]] = field(default_factory=list)  # by round: each site's rows
    weights: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.community = {name: value.numpy().copy() for name, value in self.module.state_dict().items()}
        self.bench = Bench(spec_of(self.module), self.pool, self.community)
        self.windows = [Windows(DiskFiles(self.folder / f"{number}")) for number in range(len(self.data))]

    def round(self, number: int) -> Arrays:
        updates = [self.train(site, number) for site in range(len(self.data))]
        self.weights.append([weight for _, weight in updates])
        self.bench.current = self.bench.merge(
            [Weighted(self.bench.keep(state), weight) for state, weight in updates]
        )
        self.community = tensors(self.bench.current)
        return self.community

    def train(self, site: int, number: int) -> tuple[Arrays, int]:
        task = Task(
            id=TaskId(f"j-{number * 100 + site}"),
            job=JobId("j"),
            site=SiteName(f"site-{site}"),
            round=number,
            app="app.py:app",
            seed=7,
            validation=ValidationSpec(),
            work=Train(
                model=ModelKey("j/v0"),
                version=0,
                epochs=1,
                batches=self.batches,
                batch_size=self.size,
                optimizer=self.optimizer,
            ),
        )
        assert isinstance(task.work, Train)
        held, window = self.data[site], None
        if self.batches:
            examples = Examples(held.x.numpy(), held.y.numpy())
            window = self.windows[site].begin(task, task.work, task_seed(task), examples)
            self.used += [[] for _ in range(number - len(self.used))]
            self.used[number - 1].append(torch.cat(list(window.passes(lambda: False))))
        load(self.module, self.community)
        done = train(
            APP, self.module, held, task.work, task_seed(task), lambda *_: None, lambda: False, window=window
        )
        self.windows[site].commit(task)
        state = {name: value.numpy().copy() for name, value in self.module.state_dict().items()}
        return state, done.n_used if self.batches else len(held)  # FedAvg weighs by all examples


def central(
    module: nn.Module, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], optimizer: Any
) -> list[Arrays]:
    """Train by hand on one batch after another; return the model after each."""
    found: list[Arrays] = []
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append({name: value.numpy().copy() for name, value in module.state_dict().items()})
    return found


def pooled(federation: Federation) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the sites' batches of each round as one."""
    rounds = []
    for used in federation.used:
        parts = [(held.x[rows], held.y[rows]) for held, rows in zip(federation.data, used, strict=True)]
        rounds.append((torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])))
    return rounds


def apart(a: Arrays, b: Arrays) -> float:
    return max(float(np.abs(a[name].astype(np.float64) - b[name]).max()) for name in a)


# FedSMB is central SGD.


@pytest.mark.parametrize("sizes", [(20, 20, 20), (23, 4, 61), (5, 17, 40, 33, 9)], ids=str)
@pytest.mark.parametrize("one_class_each", [False, True], ids=["iid", "one class each"])
@pytest.mark.parametrize(
    ("dtype", "rounds", "tolerance"),
    [(torch.float64, 12, 1e-10), (torch.float32, 5, 1e-5)],
    ids=["double", "single"],
)
def test_one_batch_a_round_is_central_sgd_on_all_batches_together(
    tmp_path: Path,
    pool: Executor,
    sizes: tuple[int, ...],
    one_class_each: bool,
    dtype: torch.dtype,
    rounds: int,
    tolerance: float,
) -> None:
    """Whatever the sites hold, and however unequal their batches are; with weight decay, too."""
    spec = OptimizerSpec(lr=0.1, weight_decay=0.01)
    data = site_data(sizes, one_class_each, dtype)
    federation = Federation(tmp_path, pool, data, network().to(dtype), size=7, batches=1, optimizer=spec)
    made = [federation.round(number) for number in range(1, rounds + 1)]
    module = network().to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.01)
    for found, wanted in zip(made, central(module, pooled(federation), optimizer), strict=True):
        assert apart(found, wanted) <= tolerance
    start = {name: value.numpy() for name, value in network().to(dtype).state_dict().items()}
    assert apart(made[-1], start) > 0.01, "it has learned something"
    if len(set(sizes)) > 1:
        assert any(len(set(weights)) > 1 for weights in federation.weights), (
            "batches of unequal sizes were met"
        )


def test_equal_weights_are_another_method(tmp_path: Path, pool: Executor) -> None:
    """The test above can fail: if batches differ in size, the mean must be weighted by examples used."""
    federation = Federation(
        tmp_path, pool, site_data((23, 4, 61), True, torch.float64), network().double(), 7, batches=1
    )
    updates = [federation.train(site, 1) for site in range(3)]
    module = network().double()
    (wanted,) = central(module, pooled(federation), torch.optim.SGD(module.parameters(), lr=0.1))
    assert apart(federation.bench.mean(updates), wanted) <= 1e-10
    assert apart(federation.bench.mean([(state, 1) for state, _ in updates]), wanted) > 1e-3


@pytest.mark.parametrize("breaks", ["momentum", "adam", "norm", "more batches"])
def test_what_breaks_it(tmp_path: Path, pool: Executor, breaks: str) -> None:
    """The honest side of docs/rules.md: momentum kept at sites, Adam, batch norm, and more than one batch."""
    kinds = {"momentum": OptimizerSpec(lr=0.1, momentum=0.9), "adam": OptimizerSpec(kind="adam", lr=0.1)}
    more = (nn.BatchNorm1d(9),) if breaks == "norm" else ()
    module = network(*more).double()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    if breaks == "momentum":
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    if breaks == "adam":
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    federation = Federation(
        tmp_path,
        pool,
        site_data((21, 21, 21), True, torch.float64),
        network(*more).double(),
        size=7,
        batches=3 if breaks == "more batches" else 1,
        optimizer=kinds.get(breaks, OptimizerSpec(lr=0.1)),
    )
    made = [federation.round(number) for number in range(1, 4)]
    batches = pooled(federation)
    if breaks == "more batches":
        batches = [
            (torch.cat([x[at::3] for at in range(3)]), torch.cat([y[at::3] for at in range(3)]))
            for x, y in batches
        ]
    assert apart(made[-1], central(module, batches, optimizer)[-1]) > 1e-4


# A window of all batches is FedAvg.


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("sizes", [(20, 20), (23, 4, 61)], ids=str)
def test_a_window_of_all_batches_is_fedavg_bit_for_bit(
    tmp_path: Path, pool: Executor, kind: str, sizes: tuple[int, ...]
) -> None:
    data = site_data(sizes, True, torch.float32)
    spec = OptimizerSpec.model_validate({"kind": kind, "lr": 0.05})
    dropout = nn.Dropout(0.3)
    whole = math.ceil(max(sizes) / 7)
    windows = Federation(tmp_path, pool, data, network(dropout), 7, batches=whole, optimizer=spec)
    epochs = Federation(tmp_path, pool, data, network(dropout), 7, optimizer=spec)
    for number in range(1, 6):
        a, b = windows.round(number), epochs.round(number)
        assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert windows.weights == epochs.weights


def test_a_last_batch_of_one_is_not_counted_where_batches_are_normalised(
    tmp_path: Path, pool: Executor
) -> None:
    data = site_data((15, 15), False, torch.float32)  # batches of 7, 7 and 1
    federation = Federation(tmp_path, pool, data, network(nn.BatchNorm1d(9)), size=7, batches=2)
    for number in range(1, 4):
        before = federation.community
        federation.round(number)
        if number == 2:  # all that is left of the pass is a batch of one: nobody trains, and the model stays
            assert apart(federation.community, before) == 0
    assert federation.weights == [[14, 14], [0, 0], [14, 14]]


# Beside the plain rule.


def test_central_momentum_is_one_batch_a_round_with_momentum_at_the_server(
    tmp_path: Path, pool: Executor
) -> None:
    data = site_data((23, 4, 61), True, torch.float64)
    federation = Federation(tmp_path, pool, data, network().double(), size=7, batches=1)
    server = Momentum(lr=1.0, beta=0.9)
    carried = {name: {"v": np.zeros(value.size)} for name, value in federation.community.items()}
    made = []
    for number in range(1, 11):
        before = federation.community
        proposal = federation.round(number)
        after = {}
        for name in proposal:
            info = MergeInfo(version=number, staleness=0, contributions=3)
            flat, moments = server.step(
                before[name].reshape(-1), proposal[name].reshape(-1), carried[name], info
            )
            after[name], carried[name] = flat.reshape(proposal[name].shape), dict(moments)
        federation.community = after
        made.append(after)
    module = network().double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for found, wanted in zip(made, central(module, pooled(federation), optimizer), strict=True):
        assert apart(found, wanted) <= 1e-9


def test_a_proximal_term_does_nothing_in_the_first_step_of_a_task(tmp_path: Path) -> None:
    module = network()
    pull = Pull(module, mu=10.0)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    pull()
    assert all(
        parameter.grad is not None and bool((parameter.grad == 1).all()) for parameter in module.parameters()
    )
