"""The proximal term (baselines §3 and §8): where it pulls, and where it must not."""

import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.methods.proximal import PROXIMAL
from hansa.common.torch.data import Tensors
from hansa.common.values.errors import InvalidApp, Refused
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.controller.plugin.samples import SITES, view, work
from hansa.controller.rules.baselines.fedprox import Plain, ProximalTerm
from hansa.learner.plugins.proximal import Pull
from hansa.learner.plugins.selection import asked_of
from tests.unit.learner.local import run_of, trained_by

pytestmark = pytest.mark.usefixtures("one_thread")


def asked(mu: float, **changes: object) -> Train:
    """Return a task as the rule shapes it."""
    given = Train.model_validate(work().model_dump() | changes)
    term = ProximalTerm(mu=mu)
    return term.shape(term.begin(), SITES[0], given, view())


class Point(nn.Module):
    """One parameter w; its loss is ½‖w − a‖² over the data rows a."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([4.0, -2.0], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.w - x).square().sum(dim=1) / 2


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def data(rows: int = 21) -> Tensors:
    generator = torch.Generator().manual_seed(1)
    return Tensors(
        torch.randn(rows, 3, generator=generator), torch.randint(0, 2, (rows,), generator=generator)
    )


CLASSIFY = App(model=network, classes=2)
POINT = App(model=Point, task="regression", loss=lambda outputs, _: outputs.mean())


def fitted(given: Train, module: nn.Module, app: App = CLASSIFY, held: Tensors | None = None) -> nn.Module:
    trained_by(run_of(app, module, held or data(), given))
    return module


@pytest.mark.parametrize(
    "optimizer", [{"kind": "sgd", "lr": 0.1, "momentum": 0.9}, {"kind": "adam", "lr": 0.01}]
)
def test_without_mu_training_is_fedavgs_bit_for_bit(optimizer: dict[str, object]) -> None:
    plain = (
        Plain()
        .shape(Plain().begin(), SITES[0], work(), view())
        .model_copy(update={"optimizer": OptimizerSpec.model_validate(optimizer)})
    )
    nothing = asked(0.0, optimizer=optimizer)
    present = nothing.model_copy(update={"plugins": (LocalPluginSpec(name=PROXIMAL, args={"mu": 0.0}),)})
    assert nothing.plugins == ()
    wanted = fitted(plain, network()).state_dict()
    for given in (nothing, present):
        found = fitted(given, network()).state_dict()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    pulled = fitted(asked(0.5, optimizer=optimizer), network()).state_dict()
    assert not all(torch.equal(pulled[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0])
def test_on_a_quadratic_it_converges_between_the_optimum_and_the_start(mu: float) -> None:
    target = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    given = asked(mu, epochs=1, steps=2000, batch_size=1, optimizer={"lr": 0.1})
    module = fitted(given, Point(), POINT, Tensors(target, torch.zeros(1)))
    assert isinstance(module, Point)
    start = torch.tensor([4.0, -2.0], dtype=torch.float64)
    assert torch.allclose(module.w.detach(), (target[0] + mu * start) / (1 + mu), atol=1e-6)


def test_where_the_data_pull_nowhere_nothing_moves() -> None:
    at = torch.tensor([[4.0, -2.0]], dtype=torch.float64)
    module = fitted(asked(10.0, optimizer={"lr": 0.05}), Point(), POINT, Tensors(at, torch.zeros(1)))
    assert isinstance(module, Point)
    assert module.w.tolist() == [4.0, -2.0]


class Turns(nn.Module):
    """Two parameters of which every batch uses one: its loss is ½‖w − 1‖²."""

    def __init__(self) -> None:
        super().__init__()
        self.ws = nn.ParameterList(torch.zeros(2, dtype=torch.float64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        used: torch.Tensor = self.ws[int(x[0, 0])]
        return (used - 1).square().sum().reshape(1) / 2


def test_a_parameter_that_a_batch_does_not_use_is_pulled_all_the_same() -> None:
    module, lr, mu = Turns(), 0.1, 0.5
    pull = Pull(module, mu)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    wanted = [0.0, 0.0, 0.0]
    for turn in range(50):
        optimizer.zero_grad()
        module(torch.tensor([[turn % 2]])).backward()
        pull()
        optimizer.step()
        wanted = [w - lr * ((w - 1 if at == turn % 2 else 0.0) + mu * w) for at, w in enumerate(wanted)]
    assert torch.allclose(
        torch.stack(list(module.ws)), torch.tensor(wanted, dtype=torch.float64)[:, None], atol=1e-12
    )
    assert module.ws[2].grad is None  # used by nobody, so it has not moved


def test_sparse_gradients_are_pulled_like_dense_ones() -> None:
    found = []
    for sparse in (False, True):
        module = nn.Embedding(5, 3, sparse=sparse, _weight=torch.ones(5, 3))
        pull = Pull(module, 0.5)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for rows in ([0, 1, 1], [1, 2], [3, 0]):
            optimizer.zero_grad()
            module(torch.tensor(rows)).square().sum().backward()
            pull()
            optimizer.step()
        found.append(module.weight.detach())
    assert torch.allclose(found[0], found[1], atol=1e-7)
    assert torch.equal(found[1][4], torch.ones(3))


def test_the_gradient_is_a_sum_over_all_numbers_and_touches_trained_parameters_only() -> None:
    module = network()
    frozen = next(module.parameters())
    frozen.requires_grad_(False)
    pull = Pull(module, 0.25, {"3.weight"})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(2.0)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    pull()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert gradients["0.weight"] is None
    for name, gradient in gradients.items():
        if gradient is not None:
            wanted = 0.5 if name == "3.weight" else 0.0
            assert torch.allclose(gradient, torch.full_like(gradient, wanted), atol=1e-6)


def test_a_learner_refuses_what_it_cannot_do() -> None:
    other = work().model_copy(update={"plugins": (LocalPluginSpec(name="telepathy"),)})
    with pytest.raises(Refused, match="'telepathy', which this learner does not have"):
        asked_of(CLASSIFY, other)
    own = App(model=dict, task="regression", train=lambda arrays, _: arrays, evaluate=lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidApp, match="local proximal: the app trains by a function of its own"):
        asked_of(own, asked(0.1))
    asked_of(own, asked(0.0))
