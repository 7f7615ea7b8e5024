"""The site's own model of Ditto (personal-models §5): how it is trained, and what it must not touch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.methods.ditto import DITTO
from hansa.common.torch.data import Tensors
from hansa.common.values.errors import InvalidApp
from hansa.common.values.results import Evaluation
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.learner.plugins.contract import Returned
from hansa.learner.plugins.selection import asked_of
from hansa.learner.plugins.testing import (
    APP,
    SEED,
    arrays_of,
    data,
    network,
    remembering,
    returned_by,
    run_of,
    work,
)

pytestmark = pytest.mark.usefixtures("one_thread")
RATE = 0.25


class Point(nn.Module):
    """One parameter w; its loss is ½‖w − a‖² over the data rows a."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([4.0, -2.0], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.w - x).square().sum(dim=1) / 2


POINT = App(model=Point, task="regression", loss=lambda outputs, _: outputs.mean())
PLACES = Tensors(
    torch.tensor([[1.0, 0.0], [3.0, 2.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.long)
)
MEAN = np.array([2.0, 1.0])  # of the places


def asked(lam: float, epochs: int = 3, **more: Any) -> Train:
    return work(plugins=(LocalPluginSpec(name=DITTO, args={"lam": lam, "epochs": epochs}),), **more)


@dataclass
class Done:
    """What a task left."""

    update: Returned
    own_model: dict[str, np.ndarray]
    draws: list[float]  # of the generators, after the task


def done(given: Train, own_model: dict[str, np.ndarray] | None = None) -> Done:
    """Train a network with batch normalisation and dropout."""
    torch.manual_seed(1)
    np.random.seed(1)
    run = run_of(APP, network(), data(), given, own=remembering(arrays=dict(own_model or {})))
    _, update = returned_by(run)
    assert {n: a.tobytes() for n, a in arrays_of(run.model).items()} == {
        name: array.tobytes() for name, array in update.tensors.items()
    }
    return Done(update, run.own_model, [float(torch.rand(1)), float(np.random.rand())])


def same(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    return some.keys() == others.keys() and all(some[n].tobytes() == others[n].tobytes() for n in some)


def test_the_update_is_that_of_fedavg_bit_for_bit_for_every_strength() -> None:
    plain = done(work())
    assert plain.own_model == {}
    for lam in (0.0, 0.1, 5.0):
        with_own = done(asked(lam))
        assert same(with_own.update.tensors, plain.update.tensors)
        assert with_own.draws == plain.draws
        assert with_own.update.metrics == {}
        assert not same(with_own.own_model, plain.update.tensors)


@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_every_step_follows_the_gradient_of_the_loss_and_of_the_pull_towards_x(lam: float) -> None:
    """v ← v − η(v − a + λ(v − x)), and v goes on from where the last task left it."""
    x, v = np.array([4.0, -2.0]), np.array([4.0, -2.0])
    remembered: dict[str, np.ndarray] = {}
    for start in (x, np.array([1.0, 1.0])):
        given = asked(lam, batch_size=2, optimizer=OptimizerSpec(lr=RATE))
        module = Point()
        with torch.no_grad():
            module.w.copy_(torch.from_numpy(start))
        run = run_of(POINT, module, PLACES, given, own=remembering(arrays=remembered))
        returned_by(run)
        for _ in range(3):
            v = v - RATE * (v - MEAN + lam * (v - start))
        np.testing.assert_allclose(run.own_model["w"], v, rtol=1e-12)
        remembered = run.own_model


def test_without_a_pull_it_is_local_training_alone() -> None:
    """Two tasks with different x give what two trainings of one model give, in plain PyTorch."""
    first = done(asked(0.0)).own_model
    second = done(asked(0.0), first).own_model
    module, examples = network(), data()
    for _ in range(2):
        seed = run_of(APP, module, examples, work()).rng(DITTO).initial_seed()
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        module.train()
        for _ in range(3):
            order = torch.randperm(len(examples), generator=generator)
            for start in range(0, len(examples), 5):
                rows = order[start : start + 5]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(examples.x[rows]), examples.y[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    assert same(second, arrays_of(module))


def test_its_random_numbers_are_its_own() -> None:
    """Without a pull, v would equal the update if both had the same shuffles and the same dropout."""
    assert run_of(APP, network(), data(), work()).rng(DITTO).initial_seed() != SEED
    both = done(asked(0.0))
    assert not same(both.own_model, both.update.tensors)


def test_it_is_trained_for_epochs_of_its_own() -> None:
    assert not same(done(asked(0.1, epochs=1)).own_model, done(asked(0.1)).own_model)
    assert same(done(asked(0.1)).own_model, done(asked(0.1, epochs=3)).own_model)


def test_frozen_layers_stay_as_they_are_and_asleep() -> None:
    module = network()
    before = arrays_of(module)
    for name in ("0", "1"):
        module.get_submodule(name).requires_grad_(requires_grad=False)
    travelling = {name: before[name] for name in ("4.weight", "4.bias")}
    run = run_of(APP, module, data(), asked(0.1), anchor=travelling)
    plugins, _ = asked_of(APP, run.work)
    held = plugins[0].begin(run)
    module.train()
    module.get_submodule("1").eval()
    plugins[0].finish(held, run)
    assert set(run.own_model) == set(travelling)
    assert not same(run.own_model, travelling)
    assert same(arrays_of(module), before)


def test_an_app_that_trains_by_itself_is_refused_with_the_reason() -> None:
    own = App(
        model=dict,
        train=lambda arrays, _: arrays,
        evaluate=lambda *_: Evaluation(n=0, loss_sum=0),
        task="regression",
    )
    with pytest.raises(
        InvalidApp, match="local ditto: the app trains by a function of its own, which cannot be"
    ):
        asked_of(own, asked(0.1))
