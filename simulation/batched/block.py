"""Trains the clients of a block together, as the learner's loop trains each of them.

The weights of a client are a row of one matrix, in the layout of its update. Clients are sorted by the number
of their examples, so those that have a batch of the same size next are neighbours and take a step together.
No batch is filled up to the size of others: that would change the bits of sums.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, vmap

from hansa.common.app import App
from hansa.common.models.model import ModelSpec
from hansa.common.torch.data import Tensors, loss_of
from hansa.common.values.tasks import Train
from hansa.learner.training.loop import Trained, summed
from hansa.simulation.batched.operations import NotBatched, SameBits


@dataclass
class Client:
    """A client in training, with as much of its course as the loop keeps."""

    data: Tensors
    seed: int
    epoch: int = 0
    steps: int = 0
    used: int = 0
    losses: list[float] = field(default_factory=list)  # of the batches of this epoch
    sizes: list[int] = field(default_factory=list)
    mean: float = float("nan")  # loss over the last epoch

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)
        self._order = torch.arange(0)

    def wants_epoch(self, work: Train) -> bool:
        """Whether it has to begin another epoch."""
        return self.steps < work.steps if work.steps else self.epoch < work.epochs

    def begin_epoch(self) -> None:
        """Shuffle the examples."""
        self.epoch += 1
        self.losses, self.sizes = [], []
        self._order = torch.randperm(len(self.data), generator=self._generator)

    def next_size(self, work: Train) -> int:
        """Return how many examples the next batch of the epoch has; 0: the epoch is over."""
        if work.steps and self.steps >= work.steps:
            return 0
        return max(0, min(work.batch_size, len(self.data) - len(self.sizes) * work.batch_size))

    def next_rows(self, work: Train) -> torch.Tensor:
        """Return the examples of the next batch."""
        start = len(self.sizes) * work.batch_size
        return self._order[start : start + work.batch_size]

    def enter(self, loss: float, size: int) -> None:
        """Note that a step was taken."""
        self.losses.append(loss)
        self.sizes.append(size)
        self.steps += 1

    def end_epoch(self) -> None:
        """Sum up the losses."""
        seen = sum(self.sizes)
        self.used += seen
        self.mean = summed(self.losses, self.sizes) / seen

    @property
    def trained(self) -> Trained:
        """What training did."""
        return Trained(self.steps, self.used, self.used / len(self.data), self.mean)


class Stack:
    """The parameters of clients: each has a row, with the bytes of its update."""

    def __init__(self, spec: ModelSpec, rows: int) -> None:
        self._bytes = torch.zeros(rows, spec.offsets[-1], dtype=torch.uint8)  # padding stays 0
        self.tensors = {
            info.name: self._bytes[:, begin : begin + size].view(torch.float32).view(rows, *info.shape)
            for info, begin, size in zip(spec.tensors, spec.offsets, spec.sizes, strict=False)
        }

    @property
    def payloads(self) -> np.ndarray:
        """The bytes of all rows."""
        payloads: np.ndarray = self._bytes.numpy()
        return payloads


class Piece(NamedTuple):
    """Neighbours, from `first` to before `end`, who take a step together.

    They are computed as if they were `width`: a block of clients is as wide as one that was tried. The rows
    behind them are computed for nothing. A width of 1 means one after another.
    """

    first: int
    end: int
    width: int


Division = Callable[
    [int, int, int], Iterable[Piece]
]  # of neighbours, by first, end and size of their batches


class BlockTraining:
    """Trains clients by stochastic gradient descent, in the rows of a stack."""

    def __init__(
        self, app: App, network: nn.Module, work: Train, clients: Sequence[Client], stack: Stack
    ) -> None:
        """Clients with more examples come first. The stack has room for the widest piece of any of them."""
        self._app, self._network, self._work, self._clients = app, network, work, clients
        self._weights = stack.tensors
        moves = self._work.optimizer.momentum > 0
        self._momentum = {name: torch.empty_like(each) for name, each in self._weights.items() if moves}

    def run(self, divide: Division) -> None:
        """Train all clients to the end."""
        self._network.train()
        while awake := [client for client in self._clients if client.wants_epoch(self._work)]:
            for client in awake:
                client.begin_epoch()
            while self._take_steps(divide):
                pass
            for client in awake:
                client.end_epoch()

    def _take_steps(self, divide: Division) -> bool:
        """Let every client take its next step of the epoch; return whether there was one."""
        first, sizes = 0, [client.next_size(self._work) for client in self._clients]
        for size, group in groupby(sizes):
            end = first + len(list(group))
            for piece in divide(first, end, size) if size else ():
                if piece.width > 1:
                    self._step_together(piece, size)
                else:
                    for number in range(piece.first, piece.end):
                        self._step(number, size)
            first = end
        return any(sizes)

    def _step_together(self, piece: Piece, size: int) -> None:
        clients = self._clients[piece.first : piece.end]
        rows = [client.next_rows(self._work) for client in clients]
        x, y = (
            _gathered([getattr(client.data, name) for client in clients], rows, piece.width)
            for name in ("x", "y")
        )
        weights = self._leaves(slice(piece.first, piece.first + piece.width))
        with _without_chance():
            losses = vmap(self._same_loss)(weights, x, y)
        if losses.ndim != 1:
            raise NotBatched("the app's loss is not a single number")
        grads = torch.autograd.grad(losses.sum(), list(weights.values()), allow_unused=True)
        self._descend(slice(piece.first, piece.end), grads)
        for client, loss in zip(clients, losses.tolist(), strict=False):
            client.enter(loss, size)

    def _step(self, number: int, size: int) -> None:
        client = self._clients[number]
        rows = client.next_rows(self._work)
        weights = self._leaves(number)
        loss = self._loss(weights, client.data.x[rows], client.data.y[rows])
        grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        self._descend(number, grads)
        client.enter(float(loss.detach()), size)

    def _leaves(self, which: int | slice) -> dict[str, torch.Tensor]:
        """Return the weights of some clients, to be differentiated by."""
        return {name: each[which].detach().requires_grad_() for name, each in self._weights.items()}

    def _loss(self, weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(self._app, functional_call(self._network, weights, (x,)), y)

    def _same_loss(self, weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with SameBits():
            return self._loss(weights, x, y)

    def _descend(self, which: int | slice, grads: Sequence[torch.Tensor | None]) -> None:
        """Move weights, with the operations of `torch.optim.SGD` in their order."""
        spec = self._work.optimizer
        first = which.start if isinstance(which, slice) else which
        for (name, all_weights), grad in zip(self._weights.items(), grads, strict=True):
            if grad is None:
                continue
            weights = all_weights[which]
            step = grad[: len(weights)] if isinstance(which, slice) else grad
            if spec.weight_decay:
                step = step.add(weights, alpha=spec.weight_decay)
            if self._momentum:
                momentum = self._momentum[name][which]
                if self._clients[first].steps:
                    momentum.mul_(spec.momentum).add_(step)
                else:
                    momentum.copy_(step)
                step = momentum
            weights.add_(step, alpha=-spec.lr)


def _gathered(data: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Return a batch of each client; if there are fewer than `width`, the first one fills the rest."""
    batches = data[0].new_empty(width, len(rows[0]), *data[0].shape[1:])
    for place, examples, wanted in zip(batches, data, rows, strict=False):
        torch.index_select(examples, 0, wanted, out=place)
    batches[len(data) :] = batches[0]
    return batches


@contextmanager
def _without_chance() -> Iterator[None]:
    """Raise if somebody draws random numbers, which would be others for each client of a block."""
    before = _states()
    yield
    if _states() != before:
        raise NotBatched("the app draws random numbers in training")


def _states() -> tuple[object, ...]:
    """Return the states of the generators that everybody shares."""
    state = np.random.get_state(legacy=False)["state"]
    return (
        torch.default_generator.get_state().numpy().tobytes(),
        state["pos"],
        state["key"].tobytes(),
        random.getstate(),
    )
