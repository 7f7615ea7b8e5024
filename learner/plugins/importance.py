"""The size of a site's gradients: the score by which RADFedi draws sites (radfed §2).

    batches      mean over mini-batches of ‖∇ℓ‖², in a pass over the training data after training (default)
    per_example  mean over examples of ‖∇ℓ‖²: the paper's formula, one gradient for each example
    online       like batches, but over the batches of the last epoch during training: free

All use the app's loss in training mode, without a proximal term (online: with what a plugin's `penalty`
adds), and update nothing. Scores of different forms cannot be compared with one another, and sites with less
than a batch of data have higher ones.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hansa.common.app import App
from hansa.common.methods.importance import IMPORTANCE, Importance
from hansa.common.plugins.registry import register
from hansa.common.torch.data import Data, loss_of, outputs_of
from hansa.common.values.errors import InvalidApp, one_line
from hansa.learner.plugins.contract import LocalPlugin, LocalRun, ProbeRun
from hansa.learner.training.batches import normalises, shuffled
from hansa.learner.training.slow import require_wanted

HELD = 4096  # squares to hold before they are summed up
NUMBERS = 1 << 26  # in gradients of single examples held at the same time

Parameters = dict[str, nn.Parameter]


class Gauge:
    """Measures the gradients of one task."""

    def __init__(self, module: nn.Module, form: Importance, tensors: Collection[str] = ()) -> None:
        self._module, self._form = module, form
        self._parameters = measured(module, form, tensors)
        self._epoch = 0
        self._mean = Mean()

    @property
    def watch(self) -> Callable[[int], None] | None:
        """A function to call with every batch's gradients, if they are measured during training."""
        return self._look if self._form.online else None

    def _look(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._mean = epoch, Mean()  # the last epoch counts
        self._mean.add([_square([each.grad for each in self._parameters.values()])])

    def score(
        self, app: App, data: Data, batch_size: int, seed: int, cancelled: Callable[[], bool]
    ) -> float | None:
        """Return the score of the module as it is, in training mode; None if there is nothing to measure."""
        if not self._parameters:  # the layers that count are not trained in this task
            return None
        if not self._form.online:
            self._mean = self._pass(app, data, batch_size, seed, cancelled)
        return self._mean.value()

    def _pass(
        self, app: App, data: Data, batch_size: int, seed: int, cancelled: Callable[[], bool]
    ) -> "Mean":
        """Make a pass over the data; return the mean squared norm of all batches' or examples' gradients."""
        module, parameters = self._module, self._parameters
        singles = _singles(app, module, parameters) if self._form.per_example else None
        generator = torch.Generator().manual_seed(seed)
        mean = Mean()
        with _unchanged(module):
            order = shuffled(len(data), batch_size, generator, normalises(module))
            for inputs, targets, _ in data.batches(order, seed, augment=True):
                require_wanted(cancelled)
                x = inputs if app.transform is None else app.transform(inputs)
                if singles is not None:
                    mean.add(singles(*_tensors(x, targets)))
                else:
                    loss = loss_of(app, outputs_of(module, x), targets)
                    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                    mean.add([_square(gradients)])
        return mean


class Mean:
    """The mean of any number of squares, without holding all of them."""

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []
        self._sum, self._count = 0.0, 0  # of those summed up

    def add(self, squares: list[torch.Tensor]) -> None:
        """Add squares to the mean."""
        self._held += squares
        if len(self._held) >= HELD:
            self._sum += float(torch.stack(self._held).sum())
            self._count += len(self._held)
            self._held = []

    @property
    def pending(self) -> int:
        """How many squares have not been summed up yet."""
        return len(self._held)

    def value(self) -> float | None:
        """Return the mean; None if there were no squares."""
        if not self._count:
            return float(torch.stack(self._held).mean()) if self._held else None
        rest = float(torch.stack(self._held).sum()) if self._held else 0.0
        return (self._sum + rest) / (self._count + len(self._held))


@register("learner", IMPORTANCE)
class Score(LocalPlugin[Gauge], Importance):
    """Measures how large the gradients are."""

    alone = "sample importance: the app trains by a function of its own, whose gradients cannot be seen"

    def begin(self, run: LocalRun) -> Gauge:
        """Choose the parameters that count."""
        return Gauge(run.model, self, run.work.tensors)

    def watch(self, held: Gauge, run: LocalRun) -> None:
        """Measure a batch, if gradients are measured during training."""
        if held.watch is not None:
            held.watch(run.epoch)

    def finish(self, held: Gauge, run: LocalRun) -> Mapping[str, float]:
        """Return the score; it takes a pass over the data, unless gradients were measured during training."""
        score = held.score(run.app, run.examples, run.work.batch_size, run.seed, run.cancelled)
        return {} if score is None else {IMPORTANCE: score}

    def probe(self, run: ProbeRun) -> float:
        """Return the score of the model as it is."""
        gauge = Gauge(run.model, self.model_copy(update={"online": False}))
        score = gauge.score(run.app, run.examples, run.batch_size, run.seed, run.cancelled)
        return math.nan if score is None else score


def measured(module: nn.Module, form: Importance, tensors: Collection[str] = ()) -> Parameters:
    """Return the parameters whose gradients count: those that are trained, in the layers that are named."""
    named = dict(module.named_parameters())
    trained = {n: each for n, each in named.items() if each.requires_grad and (not tensors or n in tensors)}
    if not form.layers:
        return trained
    for layer in form.layers:
        if not any(_within(name, layer) for name in named):
            raise InvalidApp(f"sample.layers: the app's model has no parameters in {layer!r}")
    return {
        name: each for name, each in trained.items() if any(_within(name, layer) for layer in form.layers)
    }


def _within(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _singles(
    app: App, module: nn.Module, parameters: Parameters
) -> Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """Return a function from a batch to the squared norm of each example's gradient."""
    if normalises(module):
        raise InvalidApp(
            "sample.per_example: batch normalisation mixes the examples of a batch; leave per_example out"
        )
    trained = {name: each.detach() for name, each in parameters.items()}
    tensors = (*module.named_parameters(), *module.named_buffers())  # each once, even if it has several names
    rest = {name: each.detach() for name, each in tensors if name not in trained}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(app, functional_call(module, values | rest, (x.unsqueeze(0),)), y.unsqueeze(0))

    def square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _square(list(grad(loss)(trained, x, y).values()))

    numbers = sum(each.numel() for each in trained.values())
    each = vmap(square, randomness="different", chunk_size=max(1, NUMBERS // max(1, numbers)))

    def norms(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        try:
            return list(each(x, y))
        except RuntimeError as error:  # a network may use operations that cannot be vectorised over examples
            raise InvalidApp(
                f"sample.per_example: not possible for the app's model: {one_line(error)}"
            ) from error

    return norms


def _tensors(inputs: object, targets: object) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        return inputs, targets
    raise InvalidApp("sample.per_example: a batch must be a tensor of inputs and one of targets")


def _square(gradients: "Collection[torch.Tensor | None]") -> torch.Tensor:
    """Return the squared norm of all gradients together, in double precision."""
    squares = [each.double().square().sum() for each in gradients if each is not None]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore buffers: running statistics change whenever a module in training mode sees data."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(before[name])
