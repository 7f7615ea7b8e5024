"""Converts between torch modules and named tensors: a module's spec, reading and loading its values."""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import nn

from hansa.common.models.frames import Layout, allocate, views
from hansa.common.models.model import DTYPES, FLOATS, ModelSpec, Role, TensorInfo
from hansa.common.torch.layers import layers_of, normalises
from hansa.common.values.errors import InvalidApp
from hansa.common.values.wording.words import listed


def spec_of(module: nn.Module) -> ModelSpec:
    """Describe a module's state: parameters, float buffers as statistics, other buffers as counters."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    layers, layer_of = layers_of(module)
    norms = _norms(module)
    infos = []
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidApp(
                f"{name}: the model keeps a {type(tensor).__name__} there (get_extra_state), and only"
                " tensors can be sent; keep it in a buffer, or outside the model's state"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise InvalidApp(f"{name}: tensors of type {dtype} cannot be sent")
        role = Role.COUNT if dtype not in FLOATS else Role.PARAM if name in parameters else Role.STAT
        part = name.rpartition(".")[0]
        infos.append(
            TensorInfo(name, dtype, tuple(tensor.shape), role, layer_of.get(part, 0), norms.get(part))
        )
    if not infos:
        raise InvalidApp("the model has no parameters")
    return ModelSpec(tuple(infos), tuple(layers))


def _norms(module: nn.Module) -> dict[str, float]:
    """Return the ε of every normalisation layer, for rules that compare models' statistics."""
    return {name: _epsilon(part) for name, part in module.named_modules() if normalises(part)}


def _epsilon(part: nn.Module) -> float:
    candidates = (getattr(part, name, None) for name in ("eps", "epsilon", "variance_epsilon"))
    return next((float(eps) for eps in candidates if isinstance(eps, int | float) and 0 <= eps < 1), 1e-5)


def read(module: nn.Module, spec: ModelSpec, room: np.ndarray | None = None) -> np.ndarray:
    """Copy a module's values into a payload, a new one without `room`."""
    layout = Layout(spec)
    payload = allocate(layout, room)
    state = module.state_dict()
    for name, place in views(layout, payload).items():
        np.copyto(place, as_array(state[name].cpu()))
    return payload


def load(module: nn.Module, arrays: Mapping[str, np.ndarray], staying: Collection[str] = ()) -> None:
    """Copy values into a module. Names and shapes must match the module's; those `staying` may be missing."""
    state = module.state_dict()
    missing = [name for name in state if name not in arrays and name not in staying]
    wrong = [n for n, a in arrays.items() if n not in state or tuple(state[n].shape) != a.shape]
    if missing or wrong:
        raise InvalidApp(f"the app's model does not fit the job's model at {listed(missing + wrong)}")
    _put(state, arrays)


def put(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy values of some tensors into a module that has them."""
    _put(module.state_dict(), arrays)


def _put(state: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if state[name].device.type == "cpu":
            np.copyto(as_array(state[name]), array)
        else:
            room = torch.empty_like(state[name], device="cpu")
            np.copyto(as_array(room), array)
            state[name].copy_(room)


def arrays_of(module: nn.Module, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return some of a module's tensors; those in the CPU's memory are shared, not copied."""
    if not names:
        return {}  # most often, and a state takes its time
    return {name: as_array(tensor.cpu()) for name, tensor in module.state_dict().items() if name in names}


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return an array that shares a CPU tensor's memory."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"])
    return tensor.numpy()


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares an array's memory, or a copy of it if that may not be changed."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
