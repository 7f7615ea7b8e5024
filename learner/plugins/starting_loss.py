"""The loss of a model on the training part of the site's data, before anything is trained.

It is the mean of the app's loss over all examples in evaluation mode: without dropout, with the running
statistics of batch normalisation, and without the app's `transform`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from hansa.common.app import App
from hansa.common.methods.starting_loss import STARTING_LOSS, StartingLoss
from hansa.common.plugins.registry import register
from hansa.common.torch.data import Data, loss_of, outputs_of
from hansa.common.values.errors import InvalidApp
from hansa.learner.plugins.contract import LocalPlugin, LocalRun, ProbeRun
from hansa.learner.training.slow import require_wanted


@torch.no_grad()
def mean_loss(app: App, module: nn.Module, data: Data, cancelled: Callable[[], bool]) -> float:
    """Return the mean loss over examples; NaN if there are none."""
    module.eval()
    total: torch.Tensor | float = 0.0
    for inputs, targets, size in data.in_order():
        require_wanted(cancelled)
        total += loss_of(app, outputs_of(module, inputs), targets).double() * size
    return float(total) / len(data) if len(data) else float("nan")


@register("learner", STARTING_LOSS)
class ReportsStartingLoss(LocalPlugin[float], StartingLoss):
    """Reports the loss of the model that a task starts from, or that a probe looks at."""

    alone = "the app trains by a function of its own, and the rule must know the loss before training"

    def begin(self, run: LocalRun) -> float:
        """Measure the loss."""
        return self._measured(run.app, run.model, run.examples, run.cancelled)

    def finish(self, held: float, run: LocalRun) -> Mapping[str, float]:
        """Return it."""
        return {STARTING_LOSS: held}

    def probe(self, run: ProbeRun) -> float:
        """Return the loss of the model."""
        return self._measured(run.app, run.model, run.examples, run.cancelled)

    def _measured(self, app: App, module: nn.Module, data: Data, cancelled: Callable[[], bool]) -> float:
        loss = mean_loss(app, module, data, cancelled)
        if self.least is not None and loss < self.least:
            must = f"the rule needs one that is never below {self.least:g}"
            raise InvalidApp(f"the app's loss on the site's training data is {loss:g}; {must}")
        return loss
