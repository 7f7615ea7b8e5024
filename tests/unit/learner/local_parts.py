"""Small plugins of learners: one has a use for every method, some remember or amend, one draws batches."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from pydantic import Field

from hansa.common.plugins.registry import register
from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun, Returned

Held = tuple[torch.Generator, list[float]]  # chance of its own, and the norms that it has seen


@register("learner", "all-rounder")
class AllRounder(LocalPlugin[Held]):
    """Decays weights by the loss, adds noise to gradients, ends after some epochs, and tells what it saw."""

    decay: float = Field(0.01, ge=0)
    noise: float = Field(0.001, ge=0)
    epochs: int = 2

    def begin(self, run: LocalRun) -> Held:
        """Return chance of its own, and the norms that it will see."""
        return run.rng("all-rounder"), []

    def penalty(self, held: Held, run: LocalRun) -> torch.Tensor:
        """Return the squares of what is trained."""
        trained = [each for each in run.model.parameters() if each.requires_grad]
        return self.decay * torch.stack([each.square().sum() for each in trained]).sum()

    def watch(self, held: Held, run: LocalRun) -> None:
        """Note the norm of a batch's gradients."""
        found = [each.grad.square().sum() for each in run.model.parameters() if each.grad is not None]
        held[1].append(float(torch.stack(found).sum()))

    def pull(self, held: Held, run: LocalRun) -> None:
        """Add noise."""
        for each in run.model.parameters():
            if each.grad is not None:
                each.grad.add_(torch.randn(each.shape, generator=held[0]), alpha=self.noise)

    def after_epoch(self, held: Held, run: LocalRun) -> bool:
        """End when there were enough epochs."""
        return run.epoch >= self.epochs

    def finish(self, held: Held, run: LocalRun) -> Mapping[str, float]:
        """Tell how many batches there were, and how large gradients are."""
        return {"batches": float(len(held[1])), "gradient": sum(held[1])}


@register("learner", "diary")
class Diary(LocalPlugin):
    """Counts the job's tasks at the site."""

    def finish(self, held: None, run: LocalRun) -> Mapping[str, float]:
        """Count one more."""
        before = run.memory.get("diary", 0)
        assert isinstance(before, int)
        run.memory["diary"] = before + 1
        return {"tasks": float(before + 1)}


@register("learner", "sum")
class Sum(LocalPlugin):
    """Returns the sum of all updates of the job so far, which it remembers."""

    alone = ""

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Add the updates before this one."""
        for name, array in update.tensors.items():
            if np.issubdtype(array.dtype, np.floating):
                earlier = run.arrays.get(f"sum/{name}", np.zeros_like(array))
                np.add(array, earlier, out=array)
                run.arrays[f"sum/{name}"] = array.copy()
        count = run.memory.get("sum", 0)
        assert isinstance(count, int)
        run.memory["sum"] = count + 1
        update.metrics |= {"tasks": float(count + 1), "lost": float(run.lost)}


@register("learner", "noise")
class Noise(LocalPlugin):
    """Adds noise that nobody can recompute to what is returned."""

    alone = ""
    seen: str = ""  # a metric of others to report

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Add it."""
        generator = run.secret("noise")
        for name, array in update.tensors.items():
            if np.issubdtype(array.dtype, np.floating):
                update.tensors[name] = (array + generator.normal(size=array.shape)).astype(array.dtype)
        if self.seen:
            update.metrics["seen"] = update.metrics[self.seen]


@register("batches", "some")
class Some(BatchSource):
    """A few batches that are drawn with replacement."""

    batches: int = 4

    def epoch(self, run: LocalRun, generator: torch.Generator) -> Iterator[torch.Tensor]:
        """Draw them."""
        for _ in range(self.batches):
            yield torch.randint(0, len(run.examples), (run.work.batch_size,), generator=generator)
