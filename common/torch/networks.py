"""A job's model at a site: a torch module, or plain arrays for apps with their own train and evaluate."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hansa.common.app import App
from hansa.common.models.frames import pack
from hansa.common.models.model import DTYPES, FLOATS, ModelSpec, Role, TensorInfo
from hansa.common.models.travel import TensorSets, tensor_sets
from hansa.common.values.errors import InvalidApp
from hansa.common.values.ids import odd_tensor
from hansa.common.values.results import Anatomy
from hansa.common.values.settings.training import Travel


def build(app: App, seed: int, device: str) -> Any:
    """Build the app's model with a seed: the same seed gives the same model."""
    import torch

    from hansa.common.torch.seeding import seed_generators, undisturbed

    with undisturbed():  # also by other threads that build a model at the same time
        seed_generators(seed)
        network = app.model()
    if app.train is not None:
        if not isinstance(network, Mapping):
            raise InvalidApp(
                "an app with its own train= must have a model= that returns a dict of numpy arrays"
            )
        return {str(name): np.asarray(array) for name, array in network.items()}
    if not isinstance(network, torch.nn.Module):
        raise InvalidApp(
            f"model= returned a {type(network).__name__}, not a torch module;"
            " are train= and evaluate= missing?"
        )
    return uncompiled(network).to(device)


def uncompiled(network: Any) -> Any:
    """Return a network without the wrappers of `torch.compile`, which would be in its tensors' names.

    Its forward passes are still compiled, in the way that the app asked for.
    """
    for name, part in list(network.named_children()):
        setattr(network, name, uncompiled(part))
    inner = getattr(network, "_orig_mod", None)
    if inner is None:
        return network
    forward = inner.forward

    def traced(*inputs: Any, **named: Any) -> Any:  # torch does not trace its own layers by themselves
        return forward(*inputs, **named)

    inner.forward = network.dynamo_ctx(traced)
    return inner


def describe(network: Any) -> ModelSpec:
    """Return the spec of a model; refuse tensor names that cannot be sent."""
    spec = _described(network)
    if wrong := odd_tensor((*spec.names, *spec.layers)):
        raise InvalidApp(f"the app's model: {wrong}")
    return spec


def _described(network: Any) -> ModelSpec:
    if not isinstance(network, Mapping):
        from hansa.common.torch.model import spec_of

        return spec_of(network)
    infos: list[TensorInfo] = []
    layers: list[str] = []
    for name, array in network.items():
        if array.dtype.name not in DTYPES:
            raise InvalidApp(f"{name}: arrays of type {array.dtype.name} cannot be sent")
        role = Role.PARAM if array.dtype.name in FLOATS else Role.COUNT
        owner = name.rpartition(".")[0]
        if role is Role.PARAM and array.ndim >= 2 and (not owner or owner not in layers):
            # As in a torch module: a matrix begins a layer, and what follows joins it.
            layers.append(owner or name)
        infos.append(TensorInfo(name, array.dtype.name, array.shape, role, max(len(layers) - 1, 0)))
    return ModelSpec(tuple(infos), tuple(layers))


def anatomy(network: Any, inputs: Any) -> Anatomy | None:
    """Return a model's structure; only the order of plain arrays is known."""
    if isinstance(network, Mapping):
        spec = describe(network)
        parameters = sum(info.elements for info in spec.tensors if info.role is Role.PARAM)
        return Anatomy(blocks=tuple(range(len(spec.layers))), parameters=parameters)
    from hansa.common.torch.layers import anatomy_of

    return anatomy_of(network, inputs)


def sets_of(network: Any, travel: Travel) -> TensorSets:
    """Return which tensors of a model travel and which stay; all names of a parameter go together."""
    spec = describe(network)
    if travel.whole:
        return TensorSets(spec.names)
    if isinstance(network, Mapping):
        return tensor_sets(spec, travel, spec.names)
    from hansa.common.torch.layers import ties_of

    named = network.named_parameters(remove_duplicate=False)
    sets = tensor_sets(spec, travel, {name for name, each in named if each.requires_grad})
    for tie in ties_of(network):
        for names in (sets.travelling, sets.personal):
            if 0 < len(set(tie).intersection(names)) < len(tie):
                raise InvalidApp(
                    f"layers: {' and '.join(tie)} are one parameter; all of its names must travel, or none"
                )
    return sets


def arrays_of(network: Any, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return some of a model's tensors; they share its memory where they can."""
    if isinstance(network, Mapping):
        return {name: array for name, array in network.items() if name in names}
    from hansa.common.torch import model

    return model.arrays_of(network, names)


def payload_of(network: Any, spec: ModelSpec, room: np.ndarray | None = None) -> np.ndarray:
    """Copy a model's values into a payload, a new one without `room`."""
    if isinstance(network, Mapping):
        return pack(spec, network, room)
    from hansa.common.torch.model import read

    return read(network, spec, room)
