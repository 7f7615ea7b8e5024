"""Networks as apps build them: compiled ones have their own names, and what cannot be sent is named."""

from typing import Any

import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.torch import networks
from hansa.common.values.errors import InvalidApp


class Remembers(nn.Linear):
    """A layer with state that is not a tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def built(model: Any) -> nn.Module:
    network = networks.build(App(model=model, classes=2), 1, "cpu")
    assert isinstance(network, nn.Module)
    return network


def test_compiled_networks_have_the_names_of_their_own_and_stay_compiled() -> None:
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        calls.append(len(inputs))
        return graph.forward

    def model() -> Any:
        compiled: Any = torch.compile(nn.Linear(4, 4), backend=backend)
        inside = nn.Sequential(nn.Linear(3, 4), compiled)
        return torch.compile(nn.Sequential(inside, nn.Linear(4, 2)), backend=backend)

    def usual() -> Any:
        second = nn.Linear(4, 4)  # layers are made in the same order, with the same random numbers
        return nn.Sequential(nn.Sequential(nn.Linear(3, 4), second), nn.Linear(4, 2))

    network, plain = built(model), built(usual)
    spec = networks.describe(network)
    assert spec == networks.describe(plain)
    assert spec.names[:3] == ("0.0.weight", "0.0.bias", "0.1.weight")
    x = torch.randn(5, 3)
    assert torch.equal(network(x), plain(x)), "built with the same seed"
    assert calls, "what was compiled is called"
    network(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_extra_state_is_refused_by_name() -> None:
    network = built(lambda: nn.Sequential(nn.Linear(3, 3), Remembers(3, 2)))
    with pytest.raises(
        InvalidApp, match=r"1\._extra_state: the model keeps a dict there \(get_extra_state\)"
    ):
        networks.describe(network)
