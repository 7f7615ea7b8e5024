"""The layers of a torch module: their names, their order, and what they share (divide-and-conquer §1).

A layer is a module that owns a matrix of weights; an LSTM is one layer, however many matrices it has.
Normalisation layers, whatever the shape of their scales, and other modules without a matrix join the layer
before them, in the order in which modules are registered.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from hansa.common.torch.data import outputs_of
from hansa.common.values.bounds import COLUMNS, TIES
from hansa.common.values.errors import one_line
from hansa.common.values.results import Anatomy

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
REPARAMETRISED = ("_spectralnorm", "_weightnorm")  # they normalise weights, not activations
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
SHOWN = 6  # layers that a remark names


def layers_of(module: nn.Module) -> tuple[list[str], dict[str, int]]:
    """Return the layers' names in registration order, and the number of each module's layer."""
    layers: list[str] = []
    number: dict[int, int] = {}  # by module: the same module may have several names
    layer_of: dict[str, int] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        if id(part) not in number:
            if _bears_weights(part) and ".parametrizations." not in f".{name}.":
                layers.append(name or type(part).__name__)
            number[id(part)] = max(len(layers) - 1, 0)
        layer_of[name] = number[id(part)]
    return layers, layer_of


def normalises(part: nn.Module) -> bool:
    """Whether a module is a normalisation layer: torch's, or one of a library, recognised by its name."""
    name = type(part).__name__.lower()
    return isinstance(part, NORMS) or (bool(re.search(r"norm(\dd)?$", name)) and name not in REPARAMETRISED)


def _bears_weights(part: nn.Module) -> bool:
    if normalises(part):
        return False
    own = list(part.parameters(recurse=False))
    if is_parametrized(part):
        assert isinstance(part.parametrizations, nn.Module)
        own += list(part.parametrizations.parameters())
    return any(parameter.ndim >= 2 for parameter in own)


def anatomy_of(module: nn.Module, inputs: Any = None) -> Anatomy:
    """Return a model's structure; with inputs, one forward pass checks the order of the layers."""
    layers, _ = layers_of(module)
    blocks = list(_blocks(module, layers))
    numbers = {block: i for i, block in enumerate(dict.fromkeys(blocks))}
    remarks = _order_remarks(module, layers, inputs) if inputs is not None else iter(())
    return Anatomy(
        # A learner looks at all ties of its own network before it trains.
        ties=tuple(islice(ties_of(module), TIES)),
        blocks=tuple(numbers[block] for block in blocks[:COLUMNS]),
        remarks=tuple(remark[:1000] for remark in remarks),
        frozen=tuple(islice(_frozen(module), COLUMNS)),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        frozen_parameters=sum(p.numel() for p in module.parameters() if not p.requires_grad),
    )


def _frozen(module: nn.Module) -> Iterator[int]:
    """Yield the layers in which the app has frozen every parameter."""
    layers, layer_of = layers_of(module)
    named = module.named_parameters(remove_duplicate=False)
    trained = {
        layer_of.get(name.rpartition(".")[0], 0) for name, parameter in named if parameter.requires_grad
    }
    yield from (number for number in range(len(layers)) if number not in trained)


def ties_of(module: nn.Module) -> Iterator[tuple[str, ...]]:
    """Yield the names of each parameter that has several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    yield from (tuple(tied) for tied in names.values() if len(tied) > 1)


def _blocks(module: nn.Module, layers: list[str]) -> Iterator[str]:
    """Yield the block of each layer: the outermost module around it that is not a container, or itself."""
    parts = dict(module.named_modules(remove_duplicate=False))
    for layer in layers:
        steps = layer.split(".")
        above = [".".join(steps[:depth]) for depth in range(1, len(steps))]
        yield next((name for name in above if not isinstance(parts.get(name), CONTAINERS)), layer)


def _order_remarks(module: nn.Module, layers: list[str], inputs: Any) -> Iterator[str]:
    """Compare the order in which layers are registered with the one in which they run."""
    parts = dict(module.named_modules())
    called: list[str] = []
    hooks = [
        parts[name].register_forward_pre_hook(lambda *_, name=name: called.append(name))
        for name in layers
        if name in parts
    ]
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs_of(module, inputs)
    except Exception as error:  # training will describe the problem more clearly
        yield f"the order of the layers could not be checked: {one_line(error)}"
        return
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training
    run = list(dict.fromkeys(called))
    if run != [name for name in layers if name in run]:
        shown = ", ".join(run[:SHOWN]) + (" …" if len(run) > SHOWN else "")
        yield (
            f"the model runs its layers in another order than it registers them: {shown};"
            " list them in layers.order"
        )
