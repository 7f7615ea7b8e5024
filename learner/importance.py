"""How large a site's gradients are: the score that RADFedi draws sites by (radfed §2).

    batches      mean over mini-batches of ‖∇ℓ‖², in a pass over the training data after training (default)
    per_example  mean over examples of ‖∇ℓ‖²: the paper's formula, one gradient for each example
    online       the same as batches, over those of the last epoch of training as they came: free

All are of the app's loss alone, without a proximal term, in training mode; nothing is updated. Scores of the three
forms cannot be compared with one another, and clients with less than a batch of data have higher ones.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hansa.common.app import App
from hansa.common.errors import InvalidApp, one_line
from hansa.common.tasks import IMPORTANCE, Importance, Train
from hansa.common.torch_data import Tensors, loss_of
from hansa.learner.batches import normalises, shuffled
from hansa.learner.trainer import Cancelled

NUMBERS = 1 << 26  # of gradients of single examples that are held at once

Parameters = dict[str, nn.Parameter]


class Meter:
    """Averages the squared norms of gradients over an epoch; the last one counts."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters.values()
        self._epoch = 0
        self._squares: list[torch.Tensor] = []

    def __call__(self, epoch: int) -> None:
        """Look at the gradients of a batch."""
        if epoch != self._epoch:
            self._epoch, self._squares = epoch, []
        self._squares.append(_square([p.grad for p in self._parameters if p.grad is not None]))

    def score(self) -> float | None:
        """Return the mean of the last epoch."""
        return _mean(self._squares)


def importance_of(work: Train) -> Importance | None:
    """Return what a task wants to be measured."""
    given = next((plugin.args for plugin in work.plugins if plugin.name == IMPORTANCE), None)
    return Importance.model_validate(given) if given is not None else None


def measured(module: nn.Module, given: Importance, tensors: Collection[str] = ()) -> Parameters:
    """Return the parameters whose gradients count: those that are trained, in the layers that are named."""
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    trained = {name: each for name, each in named.items() if not tensors or name in tensors}
    if not given.layers:
        return trained
    for layer in given.layers:
        if not any(_within(name, layer) for name in named):
            raise InvalidApp(f"sample.layers: the app's model has no trainable parameters in {layer!r}")
    return {name: each for name, each in trained.items() if any(_within(name, layer) for layer in given.layers)}


def _within(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def score(
    app: App,
    module: nn.Module,
    data: Tensors,
    parameters: Parameters,
    batch_size: int,
    per_example: bool,
    seed: int,
    cancelled: Callable[[], bool],
    awaken: Callable[[], object] | None = None,
) -> float | None:
    """Return the score of a model in a pass over the data; none if there are no data or nothing is trained."""
    if not parameters:
        return None
    (awaken or module.train)()
    singles = _singles(app, module, parameters) if per_example else None
    generator = torch.Generator().manual_seed(seed)
    squares: list[torch.Tensor] = []
    with _unchanged(module):
        for rows in shuffled(len(data), batch_size, generator, normalises(module)):
            if cancelled():
                raise Cancelled("the task was withdrawn")
            x = data.x[rows] if app.transform is None else app.transform(data.x[rows])
            if singles is not None:
                squares += singles(x, data.y[rows])
            else:
                loss = loss_of(app, module(x), data.y[rows])
                squares.append(_square(torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)))
    return _mean(squares)


def _singles(
    app: App, module: nn.Module, parameters: Parameters
) -> Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """Return a function from a batch to the squared norm of each example's gradient."""
    if normalises(module):
        raise InvalidApp("sample.per_example: batch normalisation mixes the examples of a batch; leave per_example out")
    trained = {name: each.detach() for name, each in parameters.items()}
    rest = {name: each.detach() for name, each in module.state_dict(keep_vars=True).items() if name not in trained}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(app, functional_call(module, values | rest, (x.unsqueeze(0),)), y.unsqueeze(0))

    def square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _square(list(grad(loss)(trained, x, y).values()))

    numbers = sum(each.numel() for each in trained.values())
    each = vmap(square, randomness="different", chunk_size=max(1, NUMBERS // max(1, numbers)))

    def squares(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        try:
            return list(each(x, y))
        except RuntimeError as error:  # a network may do what cannot be done for each example apart
            raise InvalidApp(f"sample.per_example: not possible for the app's model: {one_line(error)}") from error

    return squares


def _square(gradients: "Collection[torch.Tensor | None]") -> torch.Tensor:
    """Return the squared norm of gradients together, in double precision."""
    found = [each.double().square().sum() for each in gradients if each is not None]
    return torch.stack(found).sum() if found else torch.zeros((), dtype=torch.float64)


def _mean(squares: list[torch.Tensor]) -> float | None:
    return float(torch.stack(squares).mean()) if squares else None


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Put buffers back: running statistics change whenever a module in training mode sees data."""
    held = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(held[name])
