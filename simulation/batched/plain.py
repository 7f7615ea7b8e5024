"""Which tasks can be trained in blocks: those that ask for nothing but the learner's plain loop."""

from collections.abc import Iterator

import torch
from torch import nn

from hansa.common.app import App
from hansa.common.models.model import ModelSpec
from hansa.common.torch.layers import ties_of
from hansa.common.values.tasks import Task, Train
from hansa.learner.training.batches import normalises
from hansa.simulation.crew.base import Assignment

LARGEST = 1 << 19  # bytes of a model; blocks of larger ones leave the processor's caches and are not faster


def obstacle_in_task(assignment: Assignment, work: Train) -> str:
    """Return what a task asks for besides the plain loop; empty: nothing."""
    if assignment.memory:
        return "sites remember something from task to task"
    if assignment.pulses is not None:
        return "training ends when others have trained enough"
    return next(_obstacles_in_task(assignment.task, work), "")


def _obstacles_in_task(task: Task, work: Train) -> Iterator[str]:
    if work.optimizer.kind != "sgd":
        yield f"the optimizer is {work.optimizer.kind}, not sgd"
    elif work.optimizer.more:
        yield "the optimizer has settings of its own"
    if work.schedule.changes or work.clip or work.accumulate > 1 or work.precision != "float32":
        yield "steps are scheduled, clipped, accumulated or computed in bfloat16"
    if work.keep_optimizer:
        yield "sites keep their optimizers"
    for plugin in (*work.plugins, *((work.source,) if work.source else ())):
        yield f"the plugin {plugin.name} takes part in training"
    if work.batches:
        yield "tasks are windows of batches"
    if work.tensors or work.base is not None:
        yield "only some tensors are sent"
    if work.personal_epochs or not task.travel.whole or task.backbone or task.local_statistics:
        yield "some tensors stay at the sites"
    if work.encoding is not None:
        yield "updates are encoded"
    if work.auxiliary:
        yield "tensors travel beside the model"
    if work.validate_update:
        yield "sites evaluate their updates"


def obstacle_in_app(app: App) -> str:
    """Return what an app does besides the plain loop; empty: nothing."""
    if app.train is not None:
        return "the app trains by a function of its own"
    return "the app transforms its batches" if app.transform is not None else ""


def obstacle_in_network(network: nn.Module, spec: ModelSpec) -> str:
    """Return why copies of a network cannot be trained in blocks; empty: they can."""
    return next(_obstacles_in_network(network, spec), "")


def _obstacles_in_network(network: nn.Module, spec: ModelSpec) -> Iterator[str]:
    network.train()
    if next(network.buffers(), None) is not None or normalises(network):
        yield "the model has buffers, such as batch norm's statistics, or normalises over batches"
    parameters = dict(network.named_parameters())
    if not all(each.requires_grad for each in parameters.values()):
        yield "some parameters of the model are frozen"
    if next(ties_of(network), None) is not None:
        yield "some parameters of the model are tied"
    if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in parameters.values()):
        yield "not all parameters of the model are of the type float32"
    if {name: tuple(each.shape) for name, each in parameters.items()} != {
        info.name: info.shape for info in spec.tensors
    }:
        yield "the app's model does not fit the job's model"
    if spec.offsets[-1] > LARGEST:
        yield f"a model of more than {LARGEST >> 10} KiB would not be faster"
