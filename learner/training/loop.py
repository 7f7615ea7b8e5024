"""The training loop: plain PyTorch on batches of tensors, as lean as a hand-written loop."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Data, loss_of, outputs_of
from hansa.common.torch.devices import computing_in
from hansa.common.torch.seeding import mixed, seed_generators
from hansa.common.values.tasks import Train
from hansa.learner.plugins.contract import Course
from hansa.learner.training.batches import normalises, shuffled
from hansa.learner.training.optimizers import make_optimizer
from hansa.learner.training.slow import require_wanted
from hansa.learner.training.steps import Steps, length_of
from hansa.learner.training.window import Window


@dataclass(frozen=True)
class Trained:
    """What training did."""

    steps: int
    n_used: int
    epochs: float
    loss: float  # mean over the last epoch

    def followed_by(self, later: "Trained") -> "Trained":
        """Return what this training and a later one did, which counts the steps on.

        The steps are those of the later one alone: they are behind what the task returns.
        """
        steps = later.steps - self.steps
        return Trained(steps, self.n_used + later.n_used, self.epochs + later.epochs, later.loss)


@dataclass(frozen=True)
class Hooks:
    """What the learner's plugins do while it trains."""

    course: Course | None = None  # kept up to date with how far training has come
    pull: Callable[[], None] | None = None  # may change the gradients of a step
    enough: Callable[[], bool] | None = None  # returns after an epoch whether an update is due
    awaken: Callable[[], object] | None = None  # puts a partly frozen module into training mode
    watch: Callable[[], None] | None = None  # sees the gradients of a step, before `pull`
    penalty: Callable[[], torch.Tensor | None] | None = None  # returns a term to add to the loss of a batch
    # Returns the batches of an epoch; by default all examples, shuffled.
    batches: Callable[[torch.Generator], Iterable[torch.Tensor]] | None = None


NO_HOOKS = Hooks()
HELD = 4096  # losses of batches to hold before they are summed up: a window may have any number of them


def train(
    app: App,
    module: nn.Module,
    data: Data,
    work: Train,
    seed: int,
    progress: Callable[[int, int, float], None],
    cancelled: Callable[[], bool],
    hooks: Hooks = NO_HOOKS,
    window: Window | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Trained:
    """Train in place for the task's epochs or steps, on a `window`, or until a hook says `enough`.

    Report (epoch, steps, loss) after each epoch; stop within one batch if cancelled. Without an `optimizer` a
    new one is used: no state survives from task to task.
    """
    seed_generators(seed)  # for dropout and the like; shuffling has a generator of its own
    generator = torch.Generator().manual_seed(seed)
    optimizer = optimizer or make_optimizer(work.optimizer, module)
    course = hooks.course or Course()
    composed = hooks.batches is not None
    length = length_of(work, len(data), window.count if window else None, composed, course.epoch)
    steps = Steps(work, optimizer, length, (hooks.watch, hooks.pull))
    precision = computing_in(work.precision, str(steps.parameters[0].device) if steps.parameters else "cpu")
    awaken = hooks.awaken or module.train
    awaken()
    drop_single = normalises(module)
    used = 0
    mean = float("nan")
    while course.steps < work.steps if work.steps else course.epoch < work.epochs:
        course.epoch += 1
        losses: list[torch.Tensor] = []
        sizes: list[int] = []
        total, seen = 0.0, 0
        epoch = _epoch(data, work, generator, drop_single, window, hooks, cancelled)
        for inputs, targets, size in data.batches(epoch, mixed(seed, course.epoch), augment=True):
            require_wanted(cancelled)
            x = inputs if app.transform is None else app.transform(inputs)
            steps.begin_batch()
            with precision:
                outputs = module(x) if isinstance(x, torch.Tensor) else outputs_of(module, x)
                loss = loss_of(app, outputs, targets)
            added = hooks.penalty() if hooks.penalty is not None else None
            stepped = steps.descend(loss if added is None else loss + added, size)
            losses.append(loss.detach())  # summed up later, so that nothing holds up the next batch
            sizes.append(size)
            if len(sizes) == HELD:
                total, seen = total + summed(_numbers(losses), sizes), seen + sum(sizes)
                losses, sizes = [], []
            if stepped:
                course.steps += 1
                if course.steps == work.steps or steps.late:
                    break
        course.steps += steps.finish()
        total, seen = total + summed(_numbers(losses), sizes), seen + sum(sizes)
        used += seen
        mean = total / seen if seen else float("nan")
        progress(course.epoch, course.steps, mean)
        if not seen or window or steps.late:
            break  # nothing to train on, or nothing more
        if hooks.enough is not None:
            if hooks.enough():
                break
            awaken()  # the model may have been evaluated meanwhile
    return Trained(course.steps, used, used / len(data) if len(data) else 0.0, mean)


def _numbers(losses: list[torch.Tensor]) -> list[float]:
    return torch.stack(losses).tolist() if losses else []


def summed(losses: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the sum of the batches' losses over their examples."""
    if len(losses) == 1:  # the same number, with fewer operations: small sites have one batch in an epoch
        return losses[0] * sizes[0]
    return float(torch.tensor(losses, dtype=torch.float64) @ torch.tensor(sizes).double()) if losses else 0.0


def _epoch(
    data: Data,
    work: Train,
    generator: torch.Generator,
    drop_single: bool,
    window: Window | None,
    hooks: Hooks,
    cancelled: Callable[[], bool],
) -> Iterable[torch.Tensor]:
    """Return the batches of an epoch: of the task's window or source, or all examples shuffled."""
    if window is not None:
        return window.batches(drop_single, cancelled)
    if hooks.batches is not None:
        return (rows for rows in hooks.batches(generator) if not (drop_single and len(rows) == 1))
    return shuffled(len(data), work.batch_size, generator, drop_single)
