"""Steps of the optimizer: gradients of several batches, their largest norm, and the schedule of the rate."""

import time
from collections.abc import Callable

import torch

from hansa.common.values.errors import Refused
from hansa.common.values.tasks import Train


class Steps:
    """Turns the losses of batches into steps.

    Gradients of accumulated batches are added up with the number of their examples as weights, so that a step
    has the gradient of one large batch. The last step of an epoch may have fewer batches.
    """

    def __init__(
        self,
        work: Train,
        optimizer: torch.optim.Optimizer,
        length: int | None,
        prepare: tuple[Callable[[], None] | None, ...] = (),
    ) -> None:
        """`length` is the task's number of steps, if it is known; `prepare` sees the gradients of a step."""
        self._optimizer = optimizer
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._prepare = [each for each in prepare if each is not None]
        self._accumulate, self._clip = work.accumulate, work.clip
        self._schedule = work.schedule if work.schedule.changes else None
        self._length = self._scheduled(length) if self._schedule else 0
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._end = time.monotonic() + work.max_seconds if work.max_seconds else None
        self._made = 0
        self._batches = self._examples = 0  # whose gradients wait for a step

    def _scheduled(self, length: int | None) -> int:
        """Return the steps of a schedule; refuse one that ends, with a rate of 0, before its task does."""
        assert self._schedule is not None
        over = self._schedule.over
        if self._schedule.kind != "cosine":
            return 0
        if length is None and over is None:
            raise Refused("train.schedule: nobody knows how many steps this task has; give over")
        if over is not None and length is not None and over < length and not self._schedule.least:
            raise Refused(
                f"train.schedule: it ends after {over} steps, but this task has {length} at this site; give a"
                " larger over, or least, or leave over out"
            )
        return length or 1

    @property
    def late(self) -> bool:
        """Whether the task has taken as long as it may."""
        return self._end is not None and time.monotonic() >= self._end

    def begin_batch(self) -> None:
        """Forget the gradients of the last step."""
        if not self._batches:
            for parameter in self.parameters:
                parameter.grad = None  # `zero_grad` would spend more time on its profiling

    def descend(self, loss: torch.Tensor, size: int) -> bool:
        """Compute gradients; return whether they were enough for a step."""
        if self._accumulate == 1:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            (loss * size).backward()  # type: ignore[no-untyped-call]
            self._batches, self._examples = self._batches + 1, self._examples + size
            if self._batches < self._accumulate:
                return False
        self._step()
        return True

    def finish(self) -> bool:
        """Take a step with the gradients left at the end of an epoch; return whether there are any."""
        if not self._batches:
            return False
        self._step()
        return True

    def _step(self) -> None:
        if self._batches:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._examples)
            self._batches = self._examples = 0
        for prepare in self._prepare:
            prepare()
        if self._clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self._clip)
        if self._schedule is not None:
            factor = self._schedule.at(self._made, self._length)
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        self._optimizer.step()
        self._made += 1


def length_of(work: Train, rows: int, batches: int | None, composed: bool, epoch: int) -> int | None:
    """Return how many steps follow an epoch: `batches` in a window; None if a source composes the batches."""
    if work.steps:
        return work.steps
    if composed:
        return None
    per_epoch = -(-rows // work.batch_size)
    return batches or (work.epochs - epoch) * -(-per_epoch // work.accumulate)
