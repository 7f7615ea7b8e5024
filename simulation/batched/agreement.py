"""Whether blocks of clients have the bits of clients that the learner's loop trains, which is tried.

Every width of a block and every size of its batches is tried once, from weights that are not 0 anywhere, over
several steps: first the block, then each of its clients by the loop. All weights and losses must be equal. A
block that is not faster is not used, either.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hansa.common.app import App
from hansa.common.models.model import ModelSpec
from hansa.common.torch.data import Tensors
from hansa.common.values.tasks import Train
from hansa.learner.training.loop import train
from hansa.simulation.batched.block import BlockTraining, Client, Piece, Stack
from hansa.simulation.batched.operations import NotBatched

WIDTHS = (128, 64, 32, 16)  # of the blocks that are in use
LEAST = 10  # clients for which a block pays, even if some of its rows are computed for nothing
STEPS = 3
DECISIVE = 32  # if blocks of this width are not faster, no others are tried
SHARE = 1.0  # of the loop's time that a block may take


def wanted(batched: bool, sites: int) -> bool:
    """Whether clients are to be trained in blocks at all, as a simulation asks for and its sites allow."""
    return batched and sites >= LEAST


@dataclass(frozen=True)
class _Kind:
    """What the bits of a block depend on, apart from the app."""

    width: int
    batch: int
    example: tuple[tuple[int, ...], torch.dtype]
    target: tuple[tuple[int, ...], torch.dtype]
    momentum: bool
    weight_decay: bool


class Agreement:
    """Knows which blocks of an app's clients may be trained together."""

    def __init__(self, app: App, network: nn.Module, spec: ModelSpec) -> None:
        self._app, self._network, self._spec = app, network, spec
        self._known: dict[_Kind, bool] = {}

    def pieces(
        self, work: Train, clients: Sequence[Client], first: int, end: int, size: int
    ) -> Iterator[Piece]:
        """Divide neighbours with batches of the same size among blocks that agree, and single clients."""
        for width in WIDTHS:
            while end - first >= width or (width == WIDTHS[-1] and end - first >= LEAST):
                if not self._agrees(work, clients[first:end], width, size):
                    break
                yield Piece(first, min(first + width, end), width)
                first = min(first + width, end)
        if first < end:
            yield Piece(first, end, 1)

    def _agrees(self, work: Train, clients: Sequence[Client], width: int, size: int) -> bool:
        data, optimizer = clients[0].data, work.optimizer
        kind = _Kind(
            width,
            size,
            (tuple(data.x.shape[1:]), data.x.dtype),
            (tuple(data.y.shape[1:]), data.y.dtype),
            optimizer.momentum > 0,
            optimizer.weight_decay > 0,
        )
        if kind not in self._known:
            short = work.model_copy(update={"epochs": STEPS, "steps": 0, "batch_size": size})
            some = [clients[row % len(clients)].data for row in range(width)]
            self._known[kind] = self._try(short, [Tensors(each.x[:size], each.y[:size]) for each in some])
        return self._known[kind]

    def _try(self, work: Train, data: Sequence[Tensors]) -> bool:
        """Train some clients with a single batch each in both ways; return whether a block is faster."""
        start = Stack(self._spec, len(data))
        generator = torch.Generator().manual_seed(1990)
        for name, parameter in self._network.named_parameters():
            noise = torch.randn(start.tensors[name].shape, generator=generator)
            scale = parameter.detach().std(correction=0).clamp(min=0.01)
            start.tensors[name].copy_(parameter.detach() + noise * scale)
        for _ in range(2):  # only the second time counts: at first, much is loaded
            block, clients = Stack(self._spec, len(data)), [Client(each, i) for i, each in enumerate(data)]
            block.payloads[...] = start.payloads
            begun = time.thread_time()
            training = BlockTraining(self._app, self._network, work, clients, block)
            training.run(lambda first, end, _: [Piece(first, end, len(data))])
            together = time.thread_time() - begun
        begun = time.thread_time()
        for row, client in enumerate(clients):
            self._compare(work, client, row, start, block)
        alone = time.thread_time() - begun
        faster = together <= SHARE * alone
        if not faster and len(data) >= DECISIVE:
            raise NotBatched("it would not be faster")
        return faster

    def _compare(self, work: Train, client: Client, row: int, start: Stack, block: Stack) -> None:
        """Train a client by the loop; raise if that gives other bits than the block has."""
        with torch.no_grad():
            for name, parameter in self._network.named_parameters():
                parameter.copy_(start.tensors[name][row])
        more = (lambda _epoch, _steps, _loss: None, lambda: False)
        trained = train(self._app, self._network, client.data, work, client.seed, *more)
        same = all(
            torch.equal(parameter.detach(), block.tensors[name][row])
            for name, parameter in self._network.named_parameters()
        )
        if not same or trained != client.trained:
            what = f"a block of {len(block.payloads)} clients with batches of {work.batch_size}"
            raise NotBatched(f"{what} has other bits than its clients have one by one")
