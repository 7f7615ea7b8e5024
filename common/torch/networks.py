"""A job's model at a site: a torch module, or plain arrays for apps with their own train and evaluate."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hansa.common.app import App
from hansa.common.models.frames import pack
from hansa.common.models.model import DTYPES, FLOATS, ModelSpec, Role, TensorInfo
from hansa.common.values.errors import InvalidApp
from hansa.common.values.ids import odd_tensor
from hansa.common.values.results import Anatomy


def build(app: App, seed: int, device: str) -> Any:
    """Build the app's model with a seed: the same seed gives the same model."""
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
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
    return network.to(device)


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


def anatomy(network: Any, batch: Any) -> Anatomy | None:
    """Return a model's structure; only the order of plain arrays is known."""
    if isinstance(network, Mapping):
        spec = describe(network)
        return Anatomy(blocks=tuple(range(len(spec.layers))))
    from hansa.common.torch.layers import anatomy_of

    return anatomy_of(network, batch)


def payload_of(network: Any, spec: ModelSpec, room: np.ndarray | None = None) -> np.ndarray:
    """Copy a model's values into a payload, a new one without `room`."""
    if isinstance(network, Mapping):
        return pack(spec, network, room)
    from hansa.common.torch.model import read

    return read(network, spec, room)
