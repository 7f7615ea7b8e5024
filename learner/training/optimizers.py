"""Optimizers of learners, and what they remember from task to task (`train.keep_optimizer`)."""

import logging
from typing import Any

import torch
from torch import nn

from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.tasks import Task

log = logging.getLogger(__name__)
States = dict[str, dict[str, Any]]  # momentum and the like, by the name of the parameter


CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}


def make_optimizer(spec: OptimizerSpec, module: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer over the trainable parameters."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    make: Any = CLASSES[spec.kind]
    optimizer: torch.optim.Optimizer = make(parameters, **spec.arguments)
    return optimizer


def take_up(states: States, task: Task, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Let an optimizer go on from earlier states; parameters without one start afresh."""
    if not states and task.round > 1:
        log.warning(
            "task %s: there is no optimizer state from earlier tasks of the job; this is the site's first"
            " task, or the learner was restarted",
            task.id,
        )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and name in states:
            optimizer.state[parameter] = _placed(states[name], parameter)


def states_after(states: States, optimizer: torch.optim.Optimizer, module: nn.Module) -> States:
    """Return the optimizer's states now; parameters that it has not touched keep their earlier state."""
    current = {
        name: _copied(optimizer.state[p]) for name, p in module.named_parameters() if p in optimizer.state
    }
    return states | current


def _placed(state: dict[str, Any], parameter: nn.Parameter) -> dict[str, Any]:
    """Return a copy where the parameter is; only counts of steps stay where they are."""
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return state | {
        key: value.to(parameter.device if value.shape == parameter.shape else value.device, copy=True)
        for key, value in tensors.items()
    }


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
