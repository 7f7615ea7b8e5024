"""Optimizers of learners, and what they remember from task to task if a job wants that (`train.keep_optimizer`)."""

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hansa.common.ids import TaskId
from hansa.common.tasks import OptimizerSpec, Task

log = logging.getLogger(__name__)
States = dict[str, dict[str, Any]]  # momentum and the like, by the parameter they belong to


def make_optimizer(spec: OptimizerSpec, module: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer over the trainable parameters."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    match spec.kind:
        case "sgd":
            return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
        case "adam":
            return torch.optim.Adam(parameters, lr=spec.lr, weight_decay=spec.weight_decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=spec.lr, weight_decay=spec.weight_decay)


@dataclass
class OptimizerMemory:
    """What a learner's optimizer knows of one job. It lives as long as the learner, not longer.

    The states before the last task are kept as well: a task that is done again, because its update did not arrive,
    starts from what it started from the first time and gives the same update, bit for bit.
    """

    task: TaskId | None = None  # the last one
    before: States = field(default_factory=dict)
    after: States = field(default_factory=dict)

    def begin(self, task: Task, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        """Let an optimizer go on from what is known; tensors that it knows nothing of start anew."""
        if task.id != self.task:
            self.before = self.after
        self.task = task.id
        if not self.before and task.round > 1:
            log.warning(
                "task %s: no optimizer state of the job's tasks before is here; this is the site's first, or the"
                " learner was restarted",
                task.id,
            )
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and name in self.before:
                optimizer.state[parameter] = _copied(self.before[name])

    def end(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        """Remember what the optimizer knows; what it has not touched stays as it was."""
        held = {name: _copied(optimizer.state[p]) for name, p in module.named_parameters() if p in optimizer.state}
        self.after = self.before | held


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
