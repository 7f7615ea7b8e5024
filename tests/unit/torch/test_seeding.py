"""Seeds: what apps draw from any of the shared generators is the same for the same task."""

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.site.shelf import Shelf
from hansa.common.torch import networks
from hansa.common.torch.seeding import seed_generators, undisturbed
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.evaluator.measurer import Measurer
from tests.unit.learner.test_partial_tasks import first_model, ref_of, trainer_of

TORCH = """
import random
import numpy as np
import torch
from torch import nn
from hansa import App

def transform(x):
    return x + torch.randn(1) + float(np.random.normal()) + random.random()

app = App(model=lambda: nn.Linear(3, 2), classes=2, transform=transform)
"""
OWN = """
import random
import numpy as np
import torch
from hansa import App
from hansa.common.values.results import Evaluation

def drawn():
    return float(torch.randn(1)) + np.random.normal() + random.random()

def evaluate(arrays, examples):
    return Evaluation(n=len(examples), loss_sum=drawn() ** 2)

app = App(model=lambda: {"w": np.random.normal(size=2) + drawn()}, task="regression",
          train=lambda arrays, run: {"w": arrays["w"] + drawn()}, evaluate=evaluate)
"""


def draws() -> tuple[list[float], list[float], float]:
    return torch.randn(3).tolist(), np.random.normal(size=3).tolist(), random.random()


@pytest.mark.parametrize("seed", [0, 7, (1 << 32) - 1, 1 << 32, (1 << 63) - 1])
def test_torch_draws_the_same_as_after_its_own_manual_seed(seed: int) -> None:
    def stream() -> list[torch.Tensor]:
        dropped = nn.functional.dropout(torch.ones(100), 0.3)
        more = (torch.randint(9, (7,)), torch.multinomial(torch.ones(9), 4), torch.empty(5).exponential_())
        return [torch.randn(33), torch.rand(5), torch.randperm(1000), dropped, *more]

    torch.randn(3)  # a generator holds every second normal number back
    torch.manual_seed(seed)
    wanted = stream()
    torch.randn(1)
    seed_generators(seed)
    assert all(torch.equal(one, other) for one, other in zip(stream(), wanted, strict=True))
    assert torch.initial_seed() == seed


def test_all_three_generators_start_again() -> None:
    seed_generators(1 << 40)
    first = draws()
    assert draws() != first
    seed_generators(1 << 40)
    assert draws() == first


def test_what_borrows_the_generators_leaves_them_as_they_were() -> None:
    seed_generators(1)
    wanted = draws()
    seed_generators(1)
    with undisturbed():
        seed_generators(2)
        draws()
    networks.build(App(model=lambda: nn.Linear(3, 2), classes=2), 3, "cpu")
    assert draws() == wanted


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_threads_that_build_networks_at_the_same_time_do_not_disturb_each_other() -> None:
    def model() -> nn.Module:
        return nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))

    def build(seed: int) -> list[Any]:
        network = networks.build(App(model=model, classes=2), seed, "cpu")
        return [tensor.tolist() for tensor in network.state_dict().values()]

    seeds = [number % 5 for number in range(40)]
    wanted = [build(seed) for seed in range(5)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, seeds)) == [wanted[seed] for seed in seeds]


def task_of(work: Train | Evaluate, ref: str, number: int = 1) -> Task:
    place: dict[str, Any] = {"job": JobId("j"), "site": SiteName("a"), "app": ref}
    part = ValidationSpec(fraction=0.5)
    return Task(id=TaskId(f"j-{number}"), round=number, seed=7, validation=part, work=work, **place)


def repeats(do: Callable[[int], object]) -> None:
    """Require that a task gives the same again, and another task something else."""
    results = []
    for disturbance, number in ((1, 1), (2, 1), (2, 2)):
        seed_generators(disturbance)
        results.append(do(number))
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("text", [TORCH, OWN], ids=["torch", "own"])
def test_a_training_task_draws_the_same_again(tmp_path: Path, text: str, batches: int) -> None:
    trainer = trainer_of(tmp_path, text)
    app = trainer.shelf.get(ref_of(trainer)).app
    work = Train(
        model=ModelKey("j/v0"), version=0, epochs=1, batch_size=5, optimizer=OptimizerSpec(), batches=batches
    )

    def do(number: int) -> bytes:
        base, arrays = first_model(app)
        task = task_of(work, ref_of(trainer), number)
        return trainer.train(app, task, work, base, arrays, Event(), lambda _: None).payload.tobytes()

    repeats(do)


def test_an_evaluation_draws_the_same_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    ref, data = ref_of(trainer), trainer.options.data
    shelf = Shelf((ref,), data, "train")
    measurer, app = Measurer(trainer.options, shelf), shelf.get(ref).app
    work = Evaluate(model=ModelKey("j/v0"), version=0, validation=True)
    repeats(lambda number: measurer.evaluate(app, task_of(work, ref, number), {"w": np.zeros(2)}).loss_sum)


def test_an_app_of_arrays_builds_the_same_model_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    app = trainer.shelf.get(ref_of(trainer)).app
    repeats(lambda number: networks.build(app, number, "cpu")["w"].tolist())
