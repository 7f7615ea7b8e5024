"""Blocks of clients that train together have the bits of clients that the learner's loop trains."""

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hansa.common.app import App
from hansa.common.torch.data import Tensors
from hansa.common.torch.model import spec_of
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Train
from hansa.learner.training.loop import Trained, train
from hansa.simulation.batched.block import BlockTraining, Client, Division, Piece, Stack
from hansa.simulation.batched.operations import NotBatched

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES, CLASSES = 12, 3


class Residual(nn.Module):
    """A tensor that is used twice, means over steps of a sequence, and a product without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(3, 5, bias=False), nn.Linear(5, CLASSES)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the features as 4 steps of 3."""
        hidden = self.inner(x.view(len(x), 4, 3))
        hidden = hidden + torch.sigmoid(hidden) * self.scale
        outputs: torch.Tensor = self.last((hidden @ hidden.transpose(1, 2) @ hidden).mean(dim=1))
        return outputs


class Words(nn.Module):
    """Features as words of a small language."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(8, 6), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Average the words of an example."""
        outputs: torch.Tensor = self.last(self.words((x.abs() * 4).long().clamp(max=7)).mean(dim=1))
        return outputs


def layers(*inner: nn.Module, width: int = 9) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, width), *inner, nn.Linear(width, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(FEATURES, CLASSES),
    "relu": lambda: layers(nn.ReLU(inplace=True)),
    "whole vectors": lambda: layers(nn.Tanh(), nn.SiLU(), width=32),
    "parts of vectors": lambda: layers(nn.GELU(), nn.ELU(), nn.Sigmoid()),
    "long sums": lambda: layers(nn.Linear(400, 400), nn.ReLU(), width=400),
    "layer norm": lambda: layers(nn.LayerNorm(9), nn.LeakyReLU()),
    "convolutions": lambda: nn.Sequential(
        *(nn.Unflatten(1, (1, 4, 3)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, CLASSES)),
    ),
    "residual": Residual,
    "words": Words,
}
PLAIN = OptimizerSpec(lr=0.05)
FULL = OptimizerSpec(lr=0.05, momentum=0.9, weight_decay=0.01)


def app_of(model: Callable[[], nn.Module]) -> App:
    return App(model=model, classes=CLASSES)


def work_of(batch_size: int, epochs: int = 3, steps: int = 0, optimizer: OptimizerSpec = FULL) -> Train:
    rest = {"epochs": epochs, "steps": steps, "batch_size": batch_size, "optimizer": optimizer}
    return Train(model="j/v0", version=0, **rest)


def data_of(rows: Sequence[int]) -> list[Tensors]:
    generator = torch.Generator().manual_seed(7)
    return [
        Tensors(
            torch.randn(count, FEATURES, generator=generator),
            torch.randint(0, CLASSES, (count,), generator=generator),
        )
        for count in rows
    ]


def whole(first: int, end: int, _size: int) -> list[Piece]:
    return [Piece(first, end, end - first)]


def require_same_bits(
    app: App, data: Sequence[Tensors], work: Train, divide: Division, spare: int = 0
) -> None:
    """Train clients in both ways, from weights of their own, and compare everything."""
    torch.manual_seed(3)
    network = app.model()
    stack = Stack(spec_of(network), len(data) + spare)
    for tensor in stack.tensors.values():
        tensor.copy_(torch.randn(tensor.shape) / 4)
    start = {name: tensor.clone() for name, tensor in stack.tensors.items()}
    clients = [Client(each, number) for number, each in enumerate(data)]
    BlockTraining(app, network, work, clients, stack).run(divide)
    for row, client in enumerate(clients):
        alone, weights = _alone(app, network, client, work, {n: each[row] for n, each in start.items()})
        assert client.trained == alone
        for name, weight in weights.items():
            assert torch.equal(weight, stack.tensors[name][row]), f"{name} of client {row}"


def _alone(
    app: App, network: nn.Module, client: Client, work: Train, weights: dict[str, torch.Tensor]
) -> tuple[Trained, dict[str, torch.Tensor]]:
    network.load_state_dict(weights)
    trained = train(app, network, client.data, work, client.seed, lambda *_: None, lambda: False)
    return trained, {name: parameter.detach() for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("batch", [1, 2, 5, 16])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_block_has_the_bits_of_its_clients(name: str, batch: int) -> None:
    optimizer = PLAIN if batch == 2 else FULL
    data = data_of([batch] * 16)
    require_same_bits(app_of(NETWORKS[name]), data, work_of(batch, optimizer=optimizer), whole)


LOSSES: dict[str, App] = {
    "weighted": App(
        model=NETWORKS["relu"],
        classes=CLASSES,
        loss=lambda outputs, targets: functional.cross_entropy(
            outputs, targets, torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1
        ),
    ),
    "own": App(
        model=NETWORKS["relu"],
        classes=CLASSES,
        loss=lambda outputs, targets: (
            functional.multi_margin_loss(outputs, targets) + (outputs**2).mean() / 8
        ),
    ),
    "regression": App(model=lambda: nn.Linear(FEATURES, 1), task="regression"),
    "multilabel": App(model=NETWORKS["relu"], task="multilabel", classes=CLASSES),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_the_bits_of_single_clients(name: str) -> None:
    data = data_of([7] * 16)
    if name == "regression":
        data = [Tensors(each.x, each.y.float()) for each in data]
    if name == "multilabel":
        data = [Tensors(each.x, functional.one_hot(each.y, CLASSES).float()) for each in data]
    require_same_bits(LOSSES[name], data, work_of(7), whole)


@pytest.mark.parametrize("steps", [0, 7])
def test_clients_with_any_number_of_examples_train_together(steps: int) -> None:
    """Some train in blocks that are filled up, some alone, and short last batches are among themselves."""
    rows = [40, 40, *[33] * 12, *[32] * 5, *[17] * 9, *[16] * 4, 9, 8, 3, 1, 1]

    def divide(first: int, end: int, _size: int) -> Iterator[Piece]:
        middle = end - (end - first) % 4
        yield from (Piece(start, start + 4, 4) for start in range(first, middle, 4))
        if end - middle == 3:
            yield Piece(middle, end, 4)  # the last is computed for nothing
        elif middle < end:
            yield Piece(middle, end, 1)

    require_same_bits(app_of(NETWORKS["parts of vectors"]), data_of(rows), work_of(8, 2, steps), divide, 4)


def test_rows_that_are_computed_for_nothing_keep_their_weights() -> None:
    app, data = app_of(NETWORKS["linear"]), data_of([4, 4, 4])
    stack = Stack(spec_of(app.model()), 5)
    clients = [Client(each, 1) for each in data]
    BlockTraining(app, app.model(), work_of(4), clients, stack).run(lambda *_: [Piece(0, 3, 5)])
    assert all(tensor[:3].any() and not tensor[3:].any() for tensor in stack.tensors.values())


class Random(nn.Module):
    """Draws from a generator that all clients share."""

    def __init__(self, draw: Callable[[], object]) -> None:
        super().__init__()
        self.last, self.draw = nn.Linear(FEATURES, CLASSES), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Draw, and make no use of it."""
        self.draw()
        outputs: torch.Tensor = self.last(x)
        return outputs


class Recurrent(nn.Module):
    """An operation with many matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(3, CLASSES, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last state."""
        outputs: torch.Tensor = self.inner(x)[0][:, -1]
        return outputs


REFUSED: list[tuple[str, Callable[[], nn.Module]]] = [
    ("random numbers", lambda: layers(nn.Dropout(0.1))),
    ("random numbers", lambda: Random(np.random.random)),
    ("random numbers", lambda: Random(random.random)),
    ("in place", lambda: layers(nn.SiLU(inplace=True))),
    ("lists of tensors", lambda: nn.Sequential(nn.Unflatten(1, (4, 3)), Recurrent())),
]


@pytest.mark.parametrize(("why", "model"), REFUSED)
def test_what_cannot_have_the_same_bits_is_refused(why: str, model: Callable[[], nn.Module]) -> None:
    app = app_of(model)
    network = app.model()
    stack = Stack(spec_of(network), 3)
    clients = [Client(each, 1) for each in data_of([4, 4, 4])]
    with pytest.raises(NotBatched, match=why):
        BlockTraining(app, network, work_of(4), clients, stack).run(whole)
